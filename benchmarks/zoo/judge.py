"""What AdaptCL and Torch-Pruning make of one model of the zoo."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn

from adaptcl.units import Kept, UnitMap, parameters, trace
from adaptcl.units.size import smallest
from adaptcl.units.tensors import Tensors, call_model, tensors_in
from adaptcl.units.tracing.forward import WithoutFusedLayers
from adaptcl.units.tracing.zeroing_trial import ZeroingTrial, randomise
from adaptcl.units.user_model import without_effects

NARROWEST = 0.95
"""The share of every layer that Torch-Pruning removes for its smallest model."""


def with_adaptcl(model: nn.Module, example: Tensors) -> dict[str, Any]:
    """The shares of the parameters that sub-models keep, and whether a cut equals zeroing."""
    units = trace(model, example)
    whole = parameters(units, units.everything())
    answer: dict[str, Any] = {
        "parameters": whole,
        "least": parameters(units, smallest(units)) / whole,
        "halved": parameters(units, _halved(units)) / whole,
    }
    dice = torch.Generator().manual_seed(7)
    probe = copy.deepcopy(model)
    with without_effects(example), WithoutFusedLayers():
        randomise(probe, dice)
        for mode in ("evaluation", "training"):
            trial = ZeroingTrial(probe, example, training=mode == "training")
            same = trial.agrees(units, _random_half(units, dice))
            answer[mode] = same if same or trial.is_repeatable(units) else None
    return answer


def _halved(units: UnitMap) -> Kept:
    kept = torch.zeros(units.count, dtype=torch.bool)
    for layer in units.layers:
        kept[layer.units.start :][: max(1, len(layer.units) // 2)] = True
    return kept


def _random_half(units: UnitMap, dice: torch.Generator) -> Kept:
    kept = torch.rand(units.count, generator=dice) < 0.5
    for layer in units.layers:
        kept[layer.units.start + int(torch.randint(len(layer.units), (), generator=dice))] = True
    return kept


def with_torch_pruning(model: nn.Module, example: Tensors) -> dict[str, Any]:
    """The same shares; what it does to a model that it cannot prune."""
    with torch.no_grad():  # what a model keeps of a pass must be fit for a copy
        shapes = [each.shape for each in tensors_in(call_model(model.eval(), example))]
    answer: dict[str, Any] = {}
    for name, ratio in (("halved", 0.5), ("least", NARROWEST)):
        smaller = copy.deepcopy(model)
        try:
            _prune(smaller, example, ratio)
        except Exception as error:  # it may raise anything on a model that it does not know
            return {"failure": "raises", "error": f"{type(error).__name__}: {error}"[:200]}
        try:
            with torch.no_grad():
                left = [each.shape for each in tensors_in(call_model(smaller, example))]
        except Exception as error:
            return {"failure": "breaks", "error": f"{type(error).__name__}: {error}"[:200]}
        if left != shapes:
            return {"failure": "breaks", "error": "the output has another shape"}
        answer[name] = _count(smaller) / _count(model)
    return answer


def _prune(model: nn.Module, example: Tensors, ratio: float) -> None:
    inputs = dict(example) if isinstance(example, dict) else example
    pruner = torch_pruning.pruner.BasePruner(
        model,
        inputs,
        importance=torch_pruning.importance.MagnitudeImportance(),
        pruning_ratio=ratio,
        ignored_layers=_last_layers(model, example),
    )
    pruner.step()


def _last_layers(model: nn.Module, example: Tensors) -> list[nn.Module]:
    """The layers that make the output, as a user would name them."""
    made: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        each.register_forward_hook(lambda module, _, out: made.append((module, out)))
        for each in model.modules()
        if isinstance(each, nn.Linear | nn.modules.conv._ConvNd)
    ]
    with torch.no_grad():
        returned = {id(each) for each in tensors_in(call_model(model, example))}
    for hook in hooks:
        hook.remove()
    return [module for module, out in made if id(out) in returned] or [e[0] for e in made[-1:]]


def _count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
