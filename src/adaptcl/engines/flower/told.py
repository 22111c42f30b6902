"""What an invitation says of the server's data and model, read before anything is made of it.

It decides the size of what a worker builds and what its labels mean, and it comes from another
machine: kinds, lengths and numbers are checked here, so that nobody after this has to.
"""

from __future__ import annotations

import math
from typing import Any

from adaptcl.errors import AdaptCLError
from adaptcl.inputs import Inputs

KINDS = ("uint8", "int64", "float16", "bfloat16", "float32", "float64")
"""What inputs can be made of."""

_DIMENSIONS = 8
_NUMBERS = 2**26
"""In one input; an image of 4,700×4,700 pixels in colour has as many."""
_CLASSES = 2**16
_NAME = 1000

PARTS = 5000
"""How many modules and tensors of a model are described at most."""
WORDS = 200
"""How long the name of one of them, and what is said of it, may be."""


def read_inputs(value: Any) -> Inputs:
    """The inputs that the server's model takes, and what the scores it gives are for."""
    if not isinstance(value, dict) or set(value) != {"shape", "kind", "mean", "std", "classes"}:
        raise _odd("inputs", value)
    shape, kind = _shape(value["shape"]), value["kind"]
    if kind not in KINDS:
        raise _odd("kind", kind)
    if kind == "uint8" and len(shape) != 3:
        raise _odd("shape", value["shape"])
    mean, std = value["mean"], value["std"]
    if (mean is None) != (std is None):
        raise _odd("std", std)
    if mean is not None:
        if kind != "uint8":
            raise _odd("mean", mean)
        mean, std = _by_channel("mean", mean, shape[0]), _by_channel("std", std, shape[0])
        if min(std) <= 0:
            raise _odd("std", std)
    return Inputs(shape, kind, mean, std, _names(value["classes"]))


def read_outline(value: Any) -> dict[str, str]:
    """What each module and tensor of the server's model is."""
    if not isinstance(value, dict) or len(value) > PARTS:
        raise _odd("outline", value)
    for pair in value.items():
        # They are shown on a terminal, which must not be steered by them.
        if not all(_is_text(each, WORDS) and each.isprintable() for each in pair):
            raise _odd("outline", pair)
    return dict(value)


def _shape(value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > _DIMENSIONS
        or not all(type(each) is int and 1 <= each <= _NUMBERS for each in value)
        or math.prod(value) > _NUMBERS
    ):
        raise _odd("shape", value)
    return tuple(value)


def _by_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    if (
        not isinstance(value, list)
        or len(value) != channels
        # Whole numbers of any length are finite, but no float.
        or not all(type(each) in (int, float) and abs(each) < 1e30 for each in value)
    ):
        raise _odd(name, value)
    return tuple(float(each) for each in value)


def _names(value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= _CLASSES
        or not all(_is_text(each, _NAME) for each in value)
    ):
        raise _odd("classes", value)
    return tuple(value)


def _is_text(value: object, length: int) -> bool:
    return isinstance(value, str) and len(value) <= length


def _odd(name: str, value: object) -> AdaptCLError:
    return AdaptCLError(f"The server's invitation says that {name} is {value!r:.50}.")
