"""The check that always follows tracing: is a cut model the zeroed model?

Rules by operation cannot know everything a forward pass does with sizes: `x.view(-1, 256)`
works until a unit is cut. So random units are both zeroed and cut, and the outputs compared.
Where they differ the layers to blame are found by halving and pinned.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adaptcl.units.cut import zero
from adaptcl.units.flow import tensors_in
from adaptcl.units.rebuild import submodel
from adaptcl.units.unit_map import FIXED, Kept, Layer, UnitMap

_SETS = 3
"""Random sets of kept units that must agree in a row."""
_TOLERANCE = 1e-3
"""Allowed difference in proportion to the largest output. Rounding makes about 1e-6, a unit cut
wrongly about 1e-1."""


def checked(model: nn.Module, units: UnitMap, example: Tensor) -> UnitMap:
    """Pin every layer that cannot be cut after all. `model` is in eval mode and is spoilt."""
    generator = torch.Generator().manual_seed(0)
    _randomise(model, generator)
    check = _Check(model, example, generator)
    agreed = 0
    while units.layers and agreed < _SETS:
        culprits = check.culprits(units, units.layers)
        units = without(units, {layer.name for layer in culprits})
        agreed = 0 if culprits else agreed + 1
    return units


def without(units: UnitMap, names: Collection[str]) -> UnitMap:
    """The same model with some layers never cut."""
    renumbered = torch.full((units.count + 1,), FIXED)
    layers: list[Layer] = []
    start = 0
    for layer in units.layers:
        if layer.name not in names:
            numbers = range(start, start + len(layer.units))
            renumbered[layer.units.start : layer.units.stop] = torch.arange(start, numbers.stop)
            layers.append(Layer(layer.name, numbers))
            start = numbers.stop
    renumbers = (replace(slot, ids=renumbered[slot.ids]) for slot in units.slots)
    slots = tuple(slot for slot in renumbers if bool((slot.ids != FIXED).any()))
    cuttable = {slot.tensor for slot in slots}
    norms = tuple(name for name in units.batch_norms if f"{name}.weight" in cuttable)
    return replace(units, slots=slots, layers=tuple(layers), batch_norms=norms)


class _Check:
    """Compares cut with zeroed, for random kept units of some layers."""

    def __init__(self, model: nn.Module, example: Tensor, generator: torch.Generator) -> None:
        self._model = model
        self._zeroed = copy.deepcopy(model)
        self._state = model.state_dict()
        self._example = example
        self._generator = generator

    def culprits(self, units: UnitMap, layers: Sequence[Layer]) -> list[Layer]:
        """The layers, of those given, whose cutting changes the output."""
        if self._agrees(units, self._some_of(units, layers)):
            return []
        if len(layers) == 1:
            return list(layers)
        half = len(layers) // 2
        found = self.culprits(units, layers[:half]) + self.culprits(units, layers[half:])
        return found or list(layers)  # harmless alone, harmful together

    def _some_of(self, units: UnitMap, layers: Sequence[Layer]) -> Kept:
        """Keep some units of each of these layers, at least one but never all."""
        kept = units.everything()
        share = 0.2 + 0.6 * float(torch.rand((), generator=self._generator))
        for layer in layers:
            drawn = torch.rand(len(layer.units), generator=self._generator)
            stays = drawn > share
            stays[drawn.argmax()] = True
            stays[drawn.argmin()] = False
            kept[layer.units.start : layer.units.stop] = stays
        return kept

    def _agrees(self, units: UnitMap, kept: Kept) -> bool:
        self._zeroed.load_state_dict(zero(self._state, units, kept))
        expected = list(tensors_in(self._zeroed(self._example)))
        try:
            outputs = list(tensors_in(submodel(self._model, units, kept)(self._example)))
        except Exception:  # a user's forward pass may raise anything when its sizes change
            return False
        return len(outputs) == len(expected) and all(map(_close, outputs, expected))


def _close(output: Tensor, expected: Tensor) -> bool:
    if output.shape != expected.shape:
        return False
    output, expected = output.double(), expected.double()
    largest = expected.nan_to_num(posinf=0, neginf=0).abs().max() if expected.numel() else 0
    limit = _TOLERANCE * float(largest)
    return torch.allclose(output, expected, rtol=0, atol=limit, equal_nan=True)


def _randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Give every unit something to lose, whatever the model was initialised with.

    Fresh models hold zeros and ones where a wrong cut would not show: biases, batch-norm
    statistics, residual branches that start at zero. Whatever is a single vector becomes
    positive, so that no ReLU swallows it. Weights keep their values but get a scale that neither
    fades nor explodes over many layers.
    """
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if sum(size > 1 for size in parameter.shape) > 1:
            wanted = (2 * parameter.shape[0] / parameter.numel()) ** 0.5
            spread = float(parameter.std())
            if spread > 0:
                parameter.mul_(wanted / spread)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * wanted)
        else:
            _fill(parameter, generator)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            _fill(module.running_mean, generator)
            _fill(module.running_var, generator)


def _fill(tensor: Tensor, generator: torch.Generator) -> None:
    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)
