"""Whether two machines have the same model, told without sending it, and where they differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from torch import nn

from adaptcl.engines.flower.joining import MismatchError
from adaptcl.engines.flower.told import PARTS, WORDS
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
