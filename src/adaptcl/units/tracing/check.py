"""The check after tracing: cutting must equal zeroing, and a cut model must train.

Rules per operation cannot know everything that a forward pass does with sizes: `x.view(-1, 256)`
works until a unit is cut. So the model is cut in several ways, and each cut is compared with
zeroing: the whole model to a small random part, and that part to single units, because a forward
pass may depend on sizes. Nor does tracing see what a model does only in training, such as an
auxiliary head. So the second cut is also compared in training mode, with a backward pass. If
anything differs, a search by halves finds the layers that are responsible and pins them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from adaptcl.units.tensors import Tensors
from adaptcl.units.tracing.forward import check_repeatable
from adaptcl.units.tracing.reach import Branch
from adaptcl.units.tracing.stored_sizes import choose_sizes
from adaptcl.units.tracing.zeroing_trial import ZeroingTrial, randomise
from adaptcl.units.unit_map import FIXED, Kept, Layer, UnitMap

_ALIKE = 4
"""If so many layers are the same in repeated blocks, the first two of them speak for all."""
_SETS = 3
"""How many random sets of kept units must pass in a row while a search goes on."""

UNLIKE_ZEROING = "in a trial, cutting was not the same as zeroing"
UNTRIED = "no trial used it"
UNTRAINABLE = "in a trial in training mode, cutting failed or was not the same as zeroing"


def check(
    model: nn.Module,
    units: UnitMap,
    example: Tensors,
    *,
    steered: bool = False,
    branches: Mapping[Branch, int] | None = None,
    buffers: frozenset[str] = frozenset(),
) -> tuple[UnitMap, dict[str, str]]:
    """Pin every layer that fails the check, and say why, by its name. Of the `buffers`, training
    changes some; the others are constants.

    If values steer the forward pass, as in a mixture of experts, it may use other layers with other
    weights. So it is tried with its weights as they are, too, on the other side of all `branches`,
    and what it never uses is pinned.
    """
    generator = torch.Generator().manual_seed(0)
    tried = copy.deepcopy(model)
    randomise(tried, generator)
    trial = ZeroingTrial(tried, example)
    left = units = choose_sizes(model, units, _small_part(units), trial.agrees)
    if not _is_like_zeroing(trial, units):
        if trial.differed and not trial.is_repeatable(units):
            check_repeatable(model, example)
            tried = model  # the weights of the trial make NaN
            trial = ZeroingTrial(tried, example)
        left = _pin_unlike_zeroing(trial, units, generator)
    for branch in (branches or {}).items():
        other = ZeroingTrial(tried, example, branch=branch)
        if other.runs(left, left.everything()) and not _is_like_zeroing(other, left):
            left = _pin_unlike_zeroing(other, left, generator)
        trial.used |= other.used
    used = left
    if steered:
        unchanged = ZeroingTrial(model, example)
        if not _is_like_zeroing(unchanged, left):
            left = _pin_unlike_zeroing(unchanged, left, generator)
        used = _pin_unused(left, trial.used | unchanged.used)
    in_training = ZeroingTrial(tried, example, training=True)
    trainable = _pin_untrainable(in_training, used)
    constants = trainable.constants | (buffers - in_training.changed)
    step_counters = frozenset(in_training.raised)
    reasons: dict[str, str] = {}
    for found, why in ((trainable, UNTRAINABLE), (used, UNTRIED), (left, UNLIKE_ZEROING)):
        names = {layer.name for layer in found.layers}
        reasons.update({layer.name: why for layer in units.layers if layer.name not in names})
    return replace(trainable, step_counters=step_counters, constants=constants), reasons


def _is_like_zeroing(trial: ZeroingTrial, units: UnitMap) -> bool:
    """Whether cutting every layer equals zeroing. Only the first comparison needs the whole model,
    which takes most of the time."""
    if not units.layers:
        return True
    part = _small_part(units)
    single = _single_units(units, units.layers, part)
    return trial.agrees(units, part) and trial.agrees(units, single, within=part)


def _pin_unlike_zeroing(trial: ZeroingTrial, units: UnitMap, generator: torch.Generator) -> UnitMap:
    search = _Search(trial.agrees, partial(_is_like_zeroing, trial), generator)
    return search.pin(units, _SETS)


def _pin_untrainable(trial: ZeroingTrial, units: UnitMap) -> UnitMap:
    """Pin the layers without which training fails or differs.

    If even the whole model cannot train on the example, nothing is pinned: training itself will
    report that. If it is random in a way that cannot be repeated, outputs are not compared.
    """

    def trains(units: UnitMap) -> bool:
        part = _small_part(units)
        return trial.agrees(units, _single_units(units, units.layers, part), within=part)

    if trains(units) or not trial.runs(units, units.everything()):
        return units
    test = trial.agrees if trial.is_repeatable(units) else trial.runs
    return _Search(test, trains, torch.Generator().manual_seed(0)).pin(units, 1)


def _pin_unused(units: UnitMap, used: Collection[str]) -> UnitMap:
    """Pin the layers with units in a parameter that is not used."""
    unused = units.parameters - set(used)
    slots = (slot.ids for slot in units.slots if slot.tensor in unused)
    untried = {unit for ids in slots for unit in ids.tolist()}
    names = {layer.name for layer in units.layers if not untried.isdisjoint(layer.units)}
    return pin_layers(units, names)


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
    averages = tuple(replace(each, ids=renumbered[each.ids]) for each in units.averages)
    left = {layer.name for layer in layers}
    outputs = (each for each in units.outputs if each.module in left)
    return replace(
        units,
        slots=slots,
        layers=tuple(layers),
        bn_scales=scales,
        sizes=sizes,
        averages=averages,
        outputs=tuple(replace(each, ids=renumbered[each.ids]) for each in outputs),
    )


_Selection = Callable[[UnitMap, Sequence[Layer]], Kept]
"""Selects kept units: some of each of these layers, and all of the others."""


class _Search:
    """Finds the layers that cannot be cut, by testing a model that is cut in several ways."""

    def __init__(
        self,
        test: Callable[[UnitMap, Kept], bool],
        passes: Callable[[UnitMap], bool],
        generator: torch.Generator,
    ) -> None:
        """`passes` tells sooner than all the tests whether nothing is wrong any more."""
        self._test = test
        self._passes = passes
        self._generator = generator

    def pin(self, units: UnitMap, sets: int) -> UnitMap:
        """Pin layers until all selections, `sets` of them random, pass the test in a row."""
        selections = self._selections(sets)
        passed = 0
        while units.layers and passed < len(selections):
            before = units
            for culprits in self._culprits_by_block(units, selections[passed]):
                units = pin_layers(units, {layer.name for layer in culprits})
                if self._passes(units):
                    return units
            passed = passed + 1 if units is before else 0
        return units

    def _culprits_by_block(self, units: UnitMap, select: _Selection) -> Iterator[Sequence[Layer]]:
        """The layers whose cutting fails the test, those of repeated blocks together."""
        if self._test(units, select(units, units.layers)):
            return
        found = False
        for block in _by_block(units.layers):
            if culprits := self._culprits(units, block, select):
                found = True
                yield culprits
        if not found:  # each passes, but all together fail
            yield units.layers

    def _selections(self, sets: int) -> list[_Selection]:
        # Single units last: these are equal widths too, but they blame more layers than needed.
        return [*[self._random_units] * sets, _equal_widths, _single_units]

    def _culprits(self, units: UnitMap, layers: Sequence[Layer], select: _Selection) -> list[Layer]:
        """Those of the layers whose cutting fails the test."""
        if self._test(units, select(units, layers)):
            return []
        if len(layers) == 1:
            return list(layers)
        first = layers[:2] if len(layers) >= _ALIKE else ()
        if first and not any(self._test(units, select(units, [layer])) for layer in first):
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


def _by_block(layers: Sequence[Layer]) -> list[Sequence[Layer]]:
    """The layers, with those together that are the same in repeated blocks."""
    found: dict[tuple[str, int], list[Layer]] = {}
    for layer in layers:
        found.setdefault((layer.place_in_block, len(layer.units)), []).append(layer)
    return list(found.values())


def _small_part(units: UnitMap) -> Kept:
    """At random a sixteenth to a quarter of each layer, and at least two units if it has more."""
    generator = torch.Generator().manual_seed(1)
    kept = torch.zeros(units.count, dtype=torch.bool)
    for layer in units.layers:
        share = 1 / 16 + 3 / 16 * float(torch.rand((), generator=generator))
        drawn = torch.randperm(len(layer.units), generator=generator)
        count = min(max(2, int(share * len(layer.units))), len(layer.units) - 1)
        kept[layer.units.start + drawn[:count]] = True
    return kept


def _single_units(units: UnitMap, layers: Sequence[Layer], among: Kept | None = None) -> Kept:
    """The smallest sub-model, in which `squeeze` removes a dimension of units."""
    return _first_of(units, layers, 1, among)


def _equal_widths(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    """Equal widths of layers that differ in the whole model: some models branch on that."""
    return _first_of(units, layers, max(2, min(len(layer.units) for layer in layers) // 2))


def _first_of(
    units: UnitMap, layers: Sequence[Layer], count: int, among: Kept | None = None
) -> Kept:
    """The first units of each of these layers `among` some, or else among all."""
    kept = units.everything() if among is None else among.clone()
    for layer in layers:
        present = kept[layer.units.start : layer.units.stop].nonzero().flatten()
        kept[layer.units.start + present[count:]] = False
    return kept
