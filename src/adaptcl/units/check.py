"""The check that always follows tracing: is a cut model the zeroed model, and can it train?

Rules by operation cannot know everything a forward pass does with sizes: `x.view(-1, 256)`
works until a unit is cut. So random units are both zeroed and cut, and the outputs compared; and,
as a forward pass may look at sizes, all layers are cut to a single unit and to equally many too.
Nor does tracing see what a model does in training alone, such as an auxiliary head. So a cut model
also takes a pass in training mode. Where either goes wrong the layers to blame are found by halving
and pinned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adaptcl.units.cut import zero
from adaptcl.units.flow import tensors_in
from adaptcl.units.reconfigure import submodel
from adaptcl.units.unit_map import FIXED, Kept, Layer, UnitMap

_SETS = 3
"""Random sets of kept units that must agree in a row."""
_TOLERANCE = 1e-3
"""Allowed difference in proportion to the largest output. Rounding makes about 1e-6, a unit cut
wrongly about 1e-1."""


def checked(model: nn.Module, units: UnitMap, example: Tensor) -> UnitMap:
    """Pin every layer that cannot be cut after all. `model` is in eval mode and is spoilt."""
    return able_to_train(model, same_as_zeroed(model, units, example), example)


def same_as_zeroed(model: nn.Module, units: UnitMap, example: Tensor) -> UnitMap:
    """Pin the layers whose cutting is not the same as zeroing. `model` is as for `checked`."""
    generator = torch.Generator().manual_seed(0)
    _randomise(model, generator)
    zeroed, state = copy.deepcopy(model), model.state_dict()

    def agrees(units: UnitMap, kept: Kept) -> bool:
        zeroed.load_state_dict(zero(state, units, kept))
        expected = list(tensors_in(zeroed(example)))
        try:
            outputs = list(tensors_in(submodel(model, units, kept)(example)))
        except Exception:  # a user's forward pass may raise anything when its sizes change
            return False
        return len(outputs) == len(expected) and all(map(_close, outputs, expected))

    return _Search(agrees, generator).pinned(units, _SETS)


def able_to_train(model: nn.Module, units: UnitMap, example: Tensor) -> UnitMap:
    """Pin the layers without which a pass in training mode fails.

    What the model returns there is not compared: it may be random. A model that cannot take such
    a pass on two samples even when nothing is cut is left to those who train it.
    """
    trains = partial(_trains, model, example)
    search = _Search(trains, torch.Generator().manual_seed(0))
    if search.passes(units, 1) or not trains(units, units.everything()):
        return units
    return search.pinned(units, 1)


def _trains(model: nn.Module, example: Tensor, units: UnitMap, kept: Kept) -> bool:
    """Whether the sub-model takes a forward and a backward pass in training mode."""
    pair = example[torch.arange(2) % len(example)]  # batch norm cannot train on one sample
    try:
        with torch.enable_grad():
            outputs = tensors_in(submodel(model, units, kept).train()(pair))
            roots = [each for each in outputs if each.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(each) for each in roots])
    except Exception:  # as above
        return False
    return True


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
    scales = units.bn_scales & cuttable
    return replace(units, slots=slots, layers=tuple(layers), bn_scales=scales)


_Way = Callable[[UnitMap, Sequence[Layer]], Kept]
"""Cuts some units of each of these layers and keeps all of the others."""


class _Search:
    """Looks for layers that cannot be cut, by a test of a model cut in several ways."""

    def __init__(self, test: Callable[[UnitMap, Kept], bool], generator: torch.Generator) -> None:
        self._test = test
        self._generator = generator

    def passes(self, units: UnitMap, sets: int) -> bool:
        """Whether a model of which some units of every layer are cut passes the test."""
        ways = self._ways(sets)
        return not units.layers or all(self._test(units, way(units, units.layers)) for way in ways)

    def pinned(self, units: UnitMap, sets: int) -> UnitMap:
        """The units that are left when all ways to cut, `sets` of them random, pass in a row."""
        ways = self._ways(sets)
        passed = 0
        while units.layers and passed < len(ways):
            culprits = self._culprits(units, units.layers, ways[passed])
            units = without(units, {layer.name for layer in culprits})
            passed = 0 if culprits else passed + 1
        return units

    def _ways(self, sets: int) -> list[_Way]:
        # Single units last: they are equally many too, but blame more layers than need be.
        return [*[self._some_of] * sets, _equally_many_of, _one_of]

    def _culprits(self, units: UnitMap, layers: Sequence[Layer], way: _Way) -> list[Layer]:
        """The layers, of those given, whose cutting fails the test."""
        if self._test(units, way(units, layers)):
            return []
        if len(layers) == 1:
            return list(layers)
        half = len(layers) // 2
        found = [
            *self._culprits(units, layers[:half], way),
            *self._culprits(units, layers[half:], way),
        ]
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


def _one_of(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    """As small as a sub-model gets, where `squeeze` takes a dimension for none."""
    return _first_of(units, layers, 1)


def _equally_many_of(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    """Widths that differ in the whole model are the same, which some models choose their way by."""
    return _first_of(units, layers, max(2, min(len(layer.units) for layer in layers) // 2))


def _first_of(units: UnitMap, layers: Sequence[Layer], count: int) -> Kept:
    kept = units.everything()
    for layer in layers:
        kept[layer.units.start + count : layer.units.stop] = False
    return kept


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
