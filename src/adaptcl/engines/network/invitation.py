"""Whether two machines have the same model, told without sending it, and where they differ."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from adaptcl.data.samples import Inputs
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.units import UnitMap


def fingerprint(model: nn.Module, units: UnitMap) -> str:
    """A short text that differs where modules, tensor shapes or units differ.

    Values do not count: the server sends those. Two models whose `forward` differs but whose
    modules print alike cannot be told apart.
    """
    parts = [
        repr(model),
        [[name, list(shape)] for name, shape in units.shapes.items()],
        [[slot.tensor, slot.dim, slot.ids.tolist(), slot.owned] for slot in units.slots],
        sorted(units.parameters),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def outline(model: nn.Module, units: UnitMap) -> dict[str, str]:
    """What each module and tensor is, so that it can be said in what two models differ."""
    named = [
        *((name or "the whole", _module(module)) for name, module in model.named_modules()),
        *((name, f"a tensor {list(shape)}") for name, shape in units.shapes.items()),
    ]
    return {_short(name): _short(words) for name, words in named[:PARTS]}


def refuse_other_model(
    model: nn.Module, units: UnitMap, their_fingerprint: str, their_outline: Mapping[str, str]
) -> None:
    """An error that says where a worker's model differs from the server's, if it does."""
    if fingerprint(model, units) == their_fingerprint:
        return
    where = _difference(outline(model, units), their_outline)
    raise MismatchError(
        f"The worker's model differs from the server's: {where}; both need the same version of it."
    )


def _difference(own: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    for name, words in theirs.items():
        if name not in own:
            return f"{name} is {words} at the server and missing at the worker"
        if own[name] != words:
            return f"{name} is {words} at the server and {own[name]} at the worker"
    for name, words in own.items():
        if name not in theirs:
            return f"{name} is {words} at the worker and missing at the server"
    if list(own) != list(theirs):
        return "their modules and tensors are the same, but in another order"
    return (
        "their modules and tensors are the same, but not the units that can be cut, or how they "
        "are printed, as with other versions of AdaptCL or PyTorch"
    )


def _module(module: nn.Module) -> str:
    return " ".join(f"{type(module).__name__}({module.extra_repr()})".split())


def _short(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:WORDS]


# Why a worker cannot take part: in full for its owner, in general words for the server.
#
# An error's text may hold what is the worker's own, such as the names of files. Only of what
# server and worker have compared do both hear the same.


class MismatchError(AdaptCLError):
    """What the worker has does not go with what the server asks for.

    The sentence is read on both sides, so it says which is whose, and nothing of the data beyond
    what has to fit.
    """


def for_the_server(error: Exception) -> str:
    """What may be told of an error."""
    if isinstance(error, MismatchError):
        return str(error)
    what = {DataError: "its data cannot be used", SettingError: "its settings cannot be used"}
    general = (words for kind, words in what.items() if isinstance(error, kind))
    return f"{next(general, 'something failed on it')}; it says there what is wrong."


def for_the_owner(error: Exception) -> AdaptCLError:
    """An error that nobody foresaw, as one sentence."""
    words = " ".join([f"{type(error).__name__}: {error}.", *getattr(error, "__notes__", ())])
    return AdaptCLError(f"This worker cannot take part, because something failed: {words}")


# What an invitation says of the server's data and model, read before anything is made of it.
#
# It decides the size of what a worker builds and what its labels mean, and it comes from another
# machine: kinds, lengths and numbers are checked here, so that nobody after this has to.

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
