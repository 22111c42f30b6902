"""Codecs: how updates are encoded on their way to the server, and models on their way to workers.

A new codec is one file here and one line in `CODECS`. A custom codec needs neither: its name is
`package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from adaptcl.codecs.codec import Codec, Codecs, Memory, Parcel, Payload, Plain, Reader
from adaptcl.codecs.dgc import DGC
from adaptcl.codecs.rounded import FP16, Int8
from adaptcl.custom import custom_class
from adaptcl.errors import SettingError
from adaptcl.settings import build, is_custom


class CodecClass(Protocol):
    """What a class of codecs offers: a summary, and the settings it is made from."""

    summary: str

    @property
    def Settings(self) -> type[Any]: ...  # noqa: N802

    def __call__(self, settings: Any) -> Codec: ...


CODECS: dict[str, CodecClass] = {"plain": Plain, "fp16": FP16, "int8": Int8, "dgc": DGC}

SAME = "same"
"""In place of a codec's name for the way down: the codec of the way up, if it encodes models."""


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


def down_codec(up: str, down: str) -> str:
    """The name of the codec for models, given the names that are set for both ways."""
    if down != SAME:
        return down
    return up if _encodes_models(codec_class(up)) else "plain"


def codecs(up: str, down: str, values: Mapping[str, Any]) -> Codecs:
    """The codecs for both ways, made from the raw values like `codec`."""
    return Codecs(codec(up, values), codec(down_codec(up, down), values))


def _encodes_models(chosen: CodecClass) -> bool:
    return bool(getattr(chosen, "encodes_models", False))


DOWN_CODECS = (SAME, *(name for name, each in CODECS.items() if _encodes_models(each)))
"""The names to choose from for the way down."""


__all__ = [
    "CODECS",
    "DOWN_CODECS",
    "SAME",
    "Codec",
    "CodecClass",
    "Codecs",
    "Memory",
    "Parcel",
    "Payload",
    "Reader",
    "codec",
    "codec_class",
    "codecs",
    "down_codec",
]
