"""The check after tracing: cutting must equal zeroing, and a cut model must train.

Rules per operation cannot know everything that a forward pass does with sizes: `x.view(-1, 256)`
works until a unit is cut. So random units are both zeroed and cut, and the outputs are compared. As
a forward pass may depend on sizes, all layers are also cut to a single unit and to equal widths.
Nor does tracing see what a model does only in training, such as an auxiliary head. So a cut model
also runs once in training mode. If either check fails, a search by halves finds the layers that are
responsible and pins them.
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
from adaptcl.units.stored_sizes import choose_sizes
from adaptcl.units.tensors import Tensors, call_model, mapped
from adaptcl.units.unit_map import FIXED, Kept, Layer, UnitMap

_SETS = 3
"""How many random sets of kept units must pass in a row."""
_TOLERANCE = 1e-3
"""Allowed difference, relative to the largest output. Rounding causes about 1e-6, a wrong cut about
1e-1."""


def pin_uncuttable(model: nn.Module, units: UnitMap, example: Tensors) -> UnitMap:
    """Pin every layer that fails the check. `model` is in eval mode; its values are changed."""
    return pin_untrainable(model, pin_unlike_zeroing(model, units, example), example)


def pin_unlike_zeroing(model: nn.Module, units: UnitMap, example: Tensors) -> UnitMap:
    """Pin the layers whose cutting does not equal zeroing. `model` is as for `pin_uncuttable`."""
    generator = torch.Generator().manual_seed(0)
    _randomise(model, generator)
    zeroed, state = copy.deepcopy(model), model.state_dict()

    def agrees(units: UnitMap, kept: Kept) -> bool:
        zeroed.load_state_dict(zero(state, units, kept))
        expected = list(tensors_in(call_model(zeroed, example)))
        try:
            outputs = list(tensors_in(call_model(submodel(model, units, kept), example)))
        except Exception:  # a user's forward pass may raise anything when sizes change
            return False
        return len(outputs) == len(expected) and all(map(_close, outputs, expected))

    return _Search(agrees, generator).pin(choose_sizes(model, units, agrees), _SETS)


def pin_untrainable(model: nn.Module, units: UnitMap, example: Tensors) -> UnitMap:
    """Pin the layers whose cutting makes a pass in training mode fail.

    The outputs are not compared, because they may be random. If even the whole model cannot train
    on two samples, nothing is pinned: training itself will report that.
    """
    trains = partial(_trains, model, example)
    search = _Search(trains, torch.Generator().manual_seed(0))
    if search.passes(units, 1) or not trains(units, units.everything()):
        return units
    return search.pin(units, 1)


def _trains(model: nn.Module, example: Tensors, units: UnitMap, kept: Kept) -> bool:
    """Whether a forward and a backward pass of the sub-model in training mode succeed."""
    # Batch norm cannot train on one sample.
    pair = mapped(lambda each: each[torch.arange(2) % len(each)], example)
    try:
        with torch.enable_grad():
            outputs = tensors_in(call_model(submodel(model, units, kept).train(), pair))
            roots = [each for each in outputs if each.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(each) for each in roots])
    except Exception:
        return False
    return True


def pin_layers(units: UnitMap, names: Collection[str]) -> UnitMap:
    """The unit map in which these layers are never cut."""
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
    sizes = tuple(replace(size, ids=renumbered[size.ids]) for size in units.sizes)
    return replace(units, slots=slots, layers=tuple(layers), bn_scales=scales, sizes=sizes)


_Selection = Callable[[UnitMap, Sequence[Layer]], Kept]
"""Selects kept units: some of each of these layers, and all of the others."""


class _Search:
    """Finds the layers that cannot be cut, by testing a model that is cut in several ways."""

    def __init__(self, test: Callable[[UnitMap, Kept], bool], generator: torch.Generator) -> None:
        self._test = test
        self._generator = generator

    def passes(self, units: UnitMap, sets: int) -> bool:
        """Whether the model passes the test when every layer is cut."""
        selections = self._selections(sets)
        return not units.layers or all(
            self._test(units, select(units, units.layers)) for select in selections
        )

    def pin(self, units: UnitMap, sets: int) -> UnitMap:
        """Pin layers until all selections, `sets` of them random, pass the test in a row."""
        selections = self._selections(sets)
        passed = 0
        while units.layers and passed < len(selections):
            culprits = self._culprits(units, units.layers, selections[passed])
            units = pin_layers(units, {layer.name for layer in culprits})
            passed = 0 if culprits else passed + 1
        return units

    def _selections(self, sets: int) -> list[_Selection]:
        # Single units last: these are equal widths too, but they blame more layers than needed.
        return [*[self._random_units] * sets, _equal_widths, _single_units]

    def _culprits(self, units: UnitMap, layers: Sequence[Layer], select: _Selection) -> list[Layer]:
        """Those of the layers whose cutting fails the test."""
        if self._test(units, select(units, layers)):
            return []
        if len(layers) == 1:
            return list(layers)
        half = len(layers) // 2
        found = [
            *self._culprits(units, layers[:half], select),
            *self._culprits(units, layers[half:], select),
        ]
        return found or list(layers)  # each half passes, but both together fail

    def _random_units(self, units: UnitMap, layers: Sequence[Layer]) -> Kept:
        """Keep at least one unit of each of these layers, but never all."""
        kept = units.everything()
        share = 0.2 + 0.6 * float(torch.rand((), generator=self._generator))
        for layer in layers:
            drawn = torch.rand(len(layer.units), generator=self._generator)
            stays = drawn > share
            stays[drawn.argmax()] = True
            stays[drawn.argmin()] = False
            kept[layer.units.start : layer.units.stop] = stays
        return kept


def _single_units(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    """The smallest sub-model, in which `squeeze` removes a dimension of units."""
    return _first_of(units, layers, 1)


def _equal_widths(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    """Equal widths of layers that differ in the whole model: some models branch on that."""
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
    """Replace initial values that would hide a wrong cut.

    Fresh models hold zeros and ones in biases, batch-norm statistics and residual branches. All
    vectors become positive, so that no ReLU hides them. Weights keep their values, but get a scale
    that neither vanishes nor explodes over many layers.
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
