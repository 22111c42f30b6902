"""How updates become bytes on the way to the server.

A codec is one file and one line here; one of a user's own needs neither, it goes by
`package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from adaptcl.codecs.changes import Reader
from adaptcl.codecs.codec import Codec, Memory, Parcel, Payload
from adaptcl.codecs.dgc import DGC
from adaptcl.codecs.fp16 import FP16
from adaptcl.codecs.int8 import Int8
from adaptcl.codecs.plain import Plain
from adaptcl.custom import custom_class
from adaptcl.errors import SettingError
from adaptcl.settings import build, is_custom


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


def codec_class(name: str) -> CodecClass:
    """The codec of that name, or the user's own that a `package.module:Class` leads to."""
    if name in CODECS:
        return CODECS[name]
    if not is_custom(name):
        raise SettingError(f"There is no codec {name!r}; there are {', '.join(CODECS)}.")
    own: CodecClass = custom_class(name, "a codec", ("settings",), CodecClass, Codec)
    return own


def codec(name: str, values: Mapping[str, Any]) -> Codec:
    """The codec of that name, set by those of the raw values that are its own."""
    chosen = codec_class(name)
    return chosen(build(chosen.Settings, values))


__all__ = [
    "CODECS",
    "Codec",
    "CodecClass",
    "Memory",
    "Parcel",
    "Payload",
    "Reader",
    "codec",
    "codec_class",
]
