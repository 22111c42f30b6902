"""Who holds what: the weight of those updates that hold each element of the model.

An element of a filter belongs to the unit that owns it and to the one it reads, and an update
holds it if it holds both. Instead of adding to every element for every update, the kept units
themselves are remembered for a while, and then all of them are counted in one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.settings import With, setting
from adaptcl.units import (
    Kept,
    State,
    UnitMap,
    add_at,
    blocks,
    kept_key,
    kept_places,
    with_fixed,
    zero,
)

_AT_A_TIME = 64
"""Different sub-models that are remembered before they are counted."""


class Holders:
    """The weights of sub-models by what they hold. Sums of whole numbers are exact."""

    def __init__(self, units: UnitMap, device: torch.device) -> None:
        self._units = units
        self._device = device
        self._wholes = 0.0
        """The weight of whole models."""
        self._waiting: dict[bytes, tuple[Kept, float]] = {}
        self._counted: dict[str, Tensor] = {}

    @property
    def everything_is_held(self) -> bool:
        """Whether somebody holds the whole model."""
        return self._wholes > 0

    def add(self, kept: Kept, weight: float) -> None:
        """Count one sub-model."""
        if bool(kept.all()):
            self._wholes += weight
            return
        key = kept_key(kept)
        _, before = self._waiting.get(key, (kept, 0.0))
        self._waiting[key] = (kept, before + weight)
        if len(self._waiting) == _AT_A_TIME:
            self._count()

    def weights(self) -> Mapping[str, Tensor]:
        """For each tensor the weight of those who hold each element, in a shape that broadcasts.

        A dimension that is never cut has the length 1. A tensor that nobody has cut is left out.
        """
        self._count()
        return {name: counted + self._wholes for name, counted in self._counted.items()}

    def _count(self) -> None:
        if not self._waiting:
            return
        patterns = self._units.patterns
        kept, weights = zip(*self._waiting.values(), strict=True)
        self._waiting.clear()
        flags = torch.stack([with_fixed(each) for each in kept])[:, patterns.ids]
        by_pattern = flags.to(self._device, torch.float64).tensor_split(patterns.ends[:-1], dim=1)
        places = zip(self._units.slots, patterns.of_slot, strict=True)
        flags_of = {(slot.tensor, slot.dim): by_pattern[which] for slot, which in places}
        weight = torch.tensor(weights, dtype=torch.float64).to(self._device)
        for name, slots in self._units.by_tensor.items():
            product = _product(weight, [flags_of[name, slot.dim] for slot in slots])
            dims = {slot.dim for slot in slots}
            whole = self._units.shapes[name]
            shape = [size if dim in dims else 1 for dim, size in enumerate(whole)]
            counted = self._counted.get(name)
            self._counted[name] = product.view(shape) + (0.0 if counted is None else counted)


def _product(weight: Tensor, held: list[Tensor]) -> Tensor:
    """Over all sub-models the sum of weight × flags × flags × …, a dimension for each flags."""
    letters = "abcdefgh"[: len(held)]
    terms = ",".join(["z", *(f"z{letter}" for letter in letters)])
    result: Tensor = torch.einsum(f"{terms}->{letters}", weight, *held)
    return result


# Merging sub-models of different sizes into the global model.
#
# Each arriving sub-model is added into one running sum at the indexes of its units and can then
# be forgotten, so memory does not depend on the number of workers. What to divide by is the
# question the paper asks:
#
# - *by worker*: by the weight of all workers, as if a missing unit were zero. Pruned units fade.
# - *by unit*: by the weight of those workers that hold the unit.
#
# A third rule is ours: *by change*, as if a missing unit had not changed in the round but for a
# share `fading` of its value. With 1 that is by worker: a unit that half of the workers hold
# loses half of its filter, scale and readers in every round, so its part in the next layer falls
# to a quarter, and what a round of training cannot bring back is lost to those who could still
# afford it. With 0 nothing fades, and units that most have trained without stay in everybody's
# way for good. Slowly faded, they leave time to learn without them; `docs/how-it-works.md` has
# figures.
#
# The sum is kept in double precision. A float32 times a number of samples is exact in it, and so
# are most sums of such products, so the order in which updates arrive can change a last bit in
# about one of 10⁸ elements. In a simulation even that cannot happen, as updates arrive in the
# order of the virtual clock; across machines there is no order to hold on to, and to wait for one
# would mean to keep the updates. An element that no update holds keeps its previous value, so a
# lost worker's units stay defined.
#
# Batch-norm statistics need care by worker: a unit held by w' of W workers gets its filter scaled
# by w'/W, so its outputs' *standard deviation* scales by w'/W too, and its variance by the square
# of that. Averaging standard deviations is consistent with it; averaging variances is not. So
# this is about the variances of units that can be cut; all others are averaged as they are. Where
# the outputs grow otherwise (`units/growth.py`), statistics are averaged over those who hold them
# and scaled by that power of w'/W: its square behind a depthwise convolution, not at all behind a
# frozen filter. By change it is the same, with what is left of the unit in the place of w'/W.
#
# Of whole numbers only counts of batches change in training; they take the largest value.
# Parameters that are not trained stay as they are, also where few workers hold them.

Rule = Callable[[Tensor, Tensor, float, Tensor], Tensor]
"""(sum, weight of those who hold an element, weight of all, value before) → merged value.

Where everybody holds an element, all rules give the weighted mean."""

_TINY = torch.finfo(torch.float64).tiny


def _by_worker(total: Tensor, held: Tensor, weight: float, before: Tensor) -> Tensor:
    return total / weight


def _by_unit(total: Tensor, held: Tensor, weight: float, before: Tensor) -> Tensor:
    return total / held.clamp_min(_TINY)


def _by_change(fading: float) -> Rule:
    left = 1 - fading
    return lambda total, held, weight, before: (total + (weight - held) * (left * before)) / weight


@dataclass(frozen=True)
class _Merging:
    """What a name of a rule stands for."""

    rule: Rule
    unfaded: Rule
    """The same if units that are missing did not fade."""
    fading: float
    """The share of its value that a unit loses where it is missing."""

    def of_powers(self, powers: Tensor) -> Rule:
        """For statistics of what grows with these powers of what is left of the unit."""
        return lambda total, held, weight, before: (
            self.unfaded(total, held, weight, before)
            * (1 - self.fading * (1 - held / weight)) ** powers
        )


_MERGINGS: dict[str, Callable[[float], _Merging]] = {
    "by-worker": lambda fading: _Merging(_by_worker, _by_unit, 1.0),
    "by-unit": lambda fading: _Merging(_by_unit, _by_unit, 0.0),
    "by-change": lambda fading: _Merging(_by_change(fading), _by_change(0.0), fading),
}


@dataclass(frozen=True)
class AggregationSettings:
    """How sub-models are merged."""

    aggregation: str = setting(
        "by-worker", "how units are merged that some sub-models have lost", choices=_MERGINGS
    )
    fading: float = setting(
        0.0,
        "by-change: for a sub-model that has lost a unit, 0 keeps the unit's value, 1 counts it as "
        "zero",
        at_least=0,
        at_most=1,
        condition=With("aggregation", "by-change"),
    )
    bn_variance: str = setting(
        "std",
        "average running variances as standard deviations (std), which fits by-worker, or as "
        "variances, as plain FedAVG does",
        choices=("std", "variance"),
    )

    @property
    def counts_as_zero(self) -> bool:
        """Whether a unit counts as zero in a sub-model that has lost it."""
        return self.aggregation == "by-worker" or (
            self.aggregation == "by-change" and self.fading == 1
        )


class Aggregation:
    """A running sum of sub-models, used again for one merge after the other."""

    def __init__(self, units: UnitMap, like: State, settings: AggregationSettings) -> None:
        self._units = units
        self._merging = _MERGINGS[settings.aggregation](settings.fading)
        self._as_std = (
            units.variances & units.by_tensor.keys()
            if settings.bn_variance == "std"
            else frozenset[str]()
        )
        self._device = next((tensor.device for tensor in like.values()), torch.device("cpu"))
        floats = {name: tensor for name, tensor in like.items() if tensor.is_floating_point()}
        sizes = [tensor.numel() for tensor in floats.values()]
        self._sum = torch.zeros(sum(sizes), dtype=torch.float64, device=self._device)
        """All sums end to end; `_sums` are its parts."""
        parts = torch.split(self._sum, sizes)
        self._sums: State = {
            name: part.view(tensor.shape)
            for (name, tensor), part in zip(floats.items(), parts, strict=True)
        }
        self._growth = {name: powers.to(self._device) for name, powers in units.growth.items()}
        self._weight = 0.0
        self._holders = Holders(units, self._device)
        self._counters: State = {}

    def add(self, state: State, kept: Kept, weight: float) -> None:
        """Add one sub-model, counted `weight` times (how many samples the worker holds)."""
        self._weight += weight
        self._holders.add(kept, weight)
        values: State = {}
        for name, tensor in state.items():
            if name in self._sums:
                value = tensor.double().sqrt() if name in self._as_std else tensor
                values[name] = value.to(self._device)
            elif name in self._units.counters:
                largest = self._counters.get(name, tensor)
                self._counters[name] = torch.maximum(largest, tensor)
        if self._device.type != "cpu" and bool(kept.all()):
            # There is no cache to fit, and launching one tensor after the other takes longest.
            flat = torch.cat([values[name].flatten() for name in self._sums])
            self._sum.add_(flat, alpha=weight)
            return
        places = kept_places(self._units, kept, self._device)
        for name, value in values.items():
            add_at(self._sums[name], value, places[name], weight)

    def result(self, previous: State) -> State:
        """The merged model; the sum is empty again then.

        What nobody held keeps its value from `previous`.
        """
        if self._weight == 0:
            return {name: tensor.clone() for name, tensor in previous.items()}
        held = self._holders.weights()
        merged = {
            name: self._mean(name, before, held.get(name))
            if name in self._sums
            else self._count(name, before)
            for name, before in previous.items()
        }
        still = self._units.frozen | self._units.constants
        merged |= {name: previous[name].clone() for name in still & merged.keys()}
        self._weight = 0.0
        self._holders = Holders(self._units, self._device)
        self._counters.clear()
        return merged

    def _count(self, name: str, previous: Tensor) -> Tensor:
        """The merged value of a tensor of whole numbers."""
        largest = self._counters.get(name)
        return previous.clone() if largest is None else torch.maximum(previous, largest)

    def _mean(self, name: str, previous: Tensor, held: Tensor | None) -> Tensor:
        """The merged value of one tensor, whose sum is set to zero."""
        merged = torch.empty_like(previous, memory_format=torch.contiguous_format)
        total, before, into = (_with_rows(t) for t in (self._sums[name], previous, merged))
        powers, is_std = self._growth.get(name), name in self._as_std
        for block in blocks(total):
            here = held[block] if held is not None and len(held) > 1 else held
            merging = self._merging
            rule = merging.rule if powers is None else merging.of_powers(powers[block])
            into[block] = self._merged(rule, total[block], before[block], here, is_std)
            total[block].zero_()
        return merged

    def _merged(
        self, rule: Rule, total: Tensor, before: Tensor, held: Tensor | None, as_std: bool
    ) -> Tensor:
        if held is None:
            mean = total / self._weight
        else:
            known = before.double().sqrt() if as_std else before
            mean = rule(total, held, self._weight, known)
        if as_std:
            mean = mean.square()
        if held is None or self._holders.everything_is_held:
            return mean
        return torch.where(held > 0, mean.to(before.dtype), before)


def _with_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.view(1)


# What no sub-model holds counts as cut in the model that is delivered.
#
# The server's own model keeps the last value of it, so that a lost worker's units stay defined
# and a sub-model can grow. But nobody trains it any more, so whoever gets the model gets zeros
# there.


def unheld_zeroed(
    state: State, units: UnitMap, sub_models: Sequence[Kept], *, by_worker: bool
) -> State:
    """The model with zeros for the units that no sub-model holds.

    Merged by worker, also for what two units share that nobody holds together: held by one worker
    of W it would be divided by W, so held by none it is nothing.
    """
    held = torch.stack(list(sub_models)).any(0)
    state = state if bool(held.all()) else zero(state, units, held)
    if not by_worker or any(bool(kept.all()) for kept in sub_models):
        return state
    holders = Holders(units, next(iter(state.values())).device)
    for kept in sub_models:
        holders.add(kept, 1.0)
    trained = {name for name in units.by_tensor if units.tied.get(name, name) in units.parameters}
    zeroed = {
        name: torch.where(weight > 0, state[name], 0)
        for name, weight in holders.weights().items()
        if name in trained - units.frozen and not bool((weight > 0).all())
    }
    return {**state, **zeroed}
