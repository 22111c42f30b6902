"""How updates become bytes on the way to the server.

A codec is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.codecs.dgc import DGC
from adaptcl.codecs.fp16 import FP16
from adaptcl.codecs.int8 import Int8
from adaptcl.codecs.plain import Plain
from adaptcl.errors import SettingError
from adaptcl.settings import build


class CodecClass(Protocol):
    """A class of codecs, which says what can be set about it."""

    summary: str

    @property
    def Settings(self) -> type[Any]:  # noqa: N802
        """The group of settings it is made from."""
        ...

    def __call__(self, settings: Any) -> Codec:
        """Make the codec."""
        ...


CODECS: dict[str, CodecClass] = {
    "plain": Plain,
    "fp16": FP16,
    "int8": Int8,
    "dgc": DGC,
}


def codec(name: str, values: Mapping[str, Any]) -> Codec:
    """The codec of that name, set by those of the raw values that are its own."""
    if name not in CODECS:
        raise SettingError(f"There is no codec {name!r}; there are {', '.join(CODECS)}.")
    chosen = CODECS[name]
    return chosen(build(chosen.Settings, values))


__all__ = [
    "CODECS",
    "Codec",
    "CodecClass",
    "Memory",
    "Parcel",
    "Payload",
    "codec",
]
