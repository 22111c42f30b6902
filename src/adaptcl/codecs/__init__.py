"""Codecs: how an update is encoded on its way to the server.

A new codec is one file here and one line in `CODECS`. A custom codec needs neither: its name is
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
    """What a class of codecs offers: a summary, and the settings it is made from."""

    summary: str

    @property
    def Settings(self) -> type[Any]: ...  # noqa: N802

    def __call__(self, settings: Any) -> Codec: ...


CODECS: dict[str, CodecClass] = {
    "plain": Plain,
    "fp16": FP16,
    "int8": Int8,
    "dgc": DGC,
}


def codec_class(name: str) -> CodecClass:
    """The class of a shipped codec, or of a custom one by its `package.module:Class`."""
    if name in CODECS:
        return CODECS[name]
    if not is_custom(name):
        raise SettingError(f"There is no codec {name!r}; there are {', '.join(CODECS)}.")
    custom: CodecClass = custom_class(name, "a codec", ("settings",), CodecClass, Codec)
    return custom


def codec(name: str, values: Mapping[str, Any]) -> Codec:
    """The codec of that name, made from those of the raw values that are settings of it."""
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
