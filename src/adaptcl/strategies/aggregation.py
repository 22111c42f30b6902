"""Model aggregation: merge sub-models of different sizes into the global model.

Each arriving sub-model is added to one running sum, at the indexes of its units, and can then be
forgotten. So memory does not depend on the number of workers. What is the sum divided by? The paper
has two rules, and this package a third; `docs/how-it-works.md` compares them:

- *by worker*: by the weight of all workers, as if a missing unit were zero. Pruned units fade.
- *by unit*: by the weight of the workers that hold the unit.
- *by change*: a missing unit counts as unchanged in the round, except that it loses a share
  `fading` of its value. With `fading` 1 this is by worker.

The sum is kept in double precision. A float32 times a number of samples is exact in it, and so are
most sums of such products. So the order of arrival changes the last bit of about one in 10⁸
elements. A simulation always merges in the order of its virtual clock, so there it changes nothing.
An element that no update holds keeps its value, so the units of a lost worker stay defined.

Batch-norm statistics of units that can be cut need care. A merge that leaves a share s of a unit
scales the *standard deviation* of its output by s and its variance by the square, so standard
deviations are averaged. Some outputs scale with another power of s (`UnitMap.scale_powers`). Their
statistics are averaged over the workers that hold them and scaled by that power.

Of all whole numbers only counters of batches and steps change in training; they take the largest
value. Parameters that are not trained keep their value, however few workers hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.settings import When, setting
from adaptcl.units import Kept, State, UnitMap, add_at, kept_key, kept_places, with_fixed, zero
from adaptcl.units.cut import row_blocks

_TINY = torch.finfo(torch.float64).tiny
_RULES = ("by-worker", "by-unit", "by-change")


@dataclass(frozen=True)
class AggregationSettings:
    """How sub-models are merged."""

    aggregation: str = setting(
        "by-worker", "how to merge a unit that some sub-models lack", choices=_RULES
    )
    fading: float = setting(
        0.0,
        "by-change: what a sub-model without a unit takes from its value in a merge; 0 nothing, 1 "
        "its whole share (by-worker)",
        at_least=0,
        at_most=1,
        condition=When({"aggregation": "by-change"}),
    )

    @property
    def share_missing(self) -> float:
        """The share of its value that a unit loses where it is missing from a sub-model."""
        return {"by-worker": 1.0, "by-unit": 0.0}.get(self.aggregation, self.fading)


class Aggregation:
    """A running sum of sub-models, reused for one merge after another."""

    def __init__(self, units: UnitMap, like: State, settings: AggregationSettings) -> None:
        self._units = units
        self._rule = settings.aggregation
        self._share_missing = settings.share_missing
        self._as_std = units.variances & units.by_tensor.keys()
        self._device = next((tensor.device for tensor in like.values()), torch.device("cpu"))
        floats = {
            name: tensor
            for name, tensor in like.items()
            if tensor.is_floating_point() and name not in units.unchanging
        }
        sizes = [tensor.numel() for tensor in floats.values()]
        self._sum = torch.zeros(sum(sizes), dtype=torch.float64, device=self._device)
        """All sums in one tensor; `_sums` are views of it."""
        views = torch.split(self._sum, sizes)
        self._sums: State = {
            name: view.view(tensor.shape)
            for (name, tensor), view in zip(floats.items(), views, strict=True)
        }
        self._scale_powers = {
            name: powers.to(self._device) for name, powers in units.scale_powers.items()
        }
        self._weight = 0.0
        self._holders = Holders(units, self._device)
        self._counters: State = {}

    def add(self, state: State, kept: Kept, weight: float) -> None:
        """Add one sub-model, weighted by `weight` (the number of the worker's samples)."""
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
            # On a GPU one operation on all tensors is faster than one launch for each.
            flat = torch.cat([values[name].flatten() for name in self._sums])
            self._sum.add_(flat, alpha=weight)
            return
        places = kept_places(self._units, kept, self._device)
        for name, value in values.items():
            add_at(self._sums[name], value, places[name], weight)

    def result(self, previous: State) -> State:
        """The merged model; what nobody held keeps its value from `previous`. Empties the sum."""
        if self._weight == 0:
            return {name: tensor.clone() for name, tensor in previous.items()}
        held = self._holders.weights()
        merged = {}
        for name, before in previous.items():
            if name in self._sums:
                merged[name] = self._mean(name, before, held.get(name))
            elif name in self._counters:
                merged[name] = torch.maximum(before, self._counters[name])
            else:
                merged[name] = before.clone()
        self._weight = 0.0
        self._holders = Holders(self._units, self._device)
        self._counters.clear()
        return merged

    def _mean(self, name: str, previous: Tensor, held: Tensor | None) -> Tensor:
        """The merged value of one tensor; its sum is set to zero."""
        merged = torch.empty_like(previous, memory_format=torch.contiguous_format)
        whole = (self._sums[name], previous, merged)
        total, before, into = (each if each.dim() else each.view(1) for each in whole)
        powers, as_std = self._scale_powers.get(name), name in self._as_std
        for block in row_blocks(total):
            here = held[block] if held is not None and len(held) > 1 else held
            if here is None:
                mean = total[block] / self._weight
            else:
                known = before[block].double().sqrt() if as_std else before[block]
                power = None if powers is None else powers[block]
                mean = self._divided(total[block], here, known, power)
            if as_std:
                mean = mean.square()
            if here is not None and not self._holders.everything_is_held:
                mean = torch.where(here > 0, mean.to(previous.dtype), before[block])
            into[block] = mean
            total[block].zero_()
        return merged

    def _divided(
        self, total: Tensor, held: Tensor, before: Tensor, powers: Tensor | None
    ) -> Tensor:
        """The merged value: the sum Σ of what the holders have, divided by the rule.

        Of all updates, whose weight is w, those that hold the element have the weight h. It was v
        before. Where everybody holds it, all rules give the mean.

            by worker   Σ / w
            by unit     Σ / h
            by change   (Σ + (w − h)·(1 − fading)·v) / w

        Statistics that scale with `powers` of the unit's remaining share are merged as if nothing
        were missing, and then scaled.
        """
        weight, share = self._weight, self._share_missing
        fading = share if powers is None else 0.0
        if self._rule == "by-change":
            mean = (total + (weight - held) * ((1 - fading) * before)) / weight
        elif self._rule == "by-worker" and powers is None:
            mean = total / weight
        else:
            mean = total / held.clamp_min(_TINY)
        return mean if powers is None else mean * (1 - share * (1 - held / weight)) ** powers


_AT_A_TIME = 64  # how many different sub-models are collected before they are counted


class Holders:
    """For each element of the model, the weight of the updates that hold it.

    An element of a filter belongs to the unit that owns it and to the unit that it reads; an update
    holds the element if it holds both. Sub-models are collected and then counted in one product,
    which is faster than adding to every element for every update. Sums of whole numbers are exact.
    """

    def __init__(self, units: UnitMap, device: torch.device) -> None:
        self._units = units
        self._device = device
        self._wholes = 0.0  # the weight of all whole models
        self._waiting: dict[bytes, tuple[Kept, float]] = {}
        self._counted: dict[str, Tensor] = {}

    @property
    def everything_is_held(self) -> bool:
        return self._wholes > 0

    def add(self, kept: Kept, weight: float) -> None:
        if bool(kept.all()):
            self._wholes += weight
            return
        key = kept_key(kept)
        _, before = self._waiting.get(key, (kept, 0.0))
        self._waiting[key] = (kept, before + weight)
        if len(self._waiting) == _AT_A_TIME:
            self._count()

    def weights(self) -> Mapping[str, Tensor]:
        """By tensor, the weight of the holders of each element, in a shape that broadcasts.

        A dimension that is never cut has length 1. A tensor that nobody has cut is left out.
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
            # The sum over all sub-models of weight × flags × flags × …; each flags is a dimension.
            letters = "abcdefgh"[: len(slots)]
            terms = ",".join(["z", *(f"z{letter}" for letter in letters)])
            held = [flags_of[name, slot.dim] for slot in slots]
            product = torch.einsum(f"{terms}->{letters}", weight, *held)
            dims = {slot.dim for slot in slots}
            whole = self._units.shapes[name]
            shape = [size if dim in dims else 1 for dim, size in enumerate(whole)]
            counted = self._counted.get(name)
            self._counted[name] = product.view(shape) + (0.0 if counted is None else counted)


def zero_missing_units(
    state: State, units: UnitMap, sub_models: Sequence[Kept], *, counts_as_zero: bool
) -> State:
    """The model with zeros for the units that no sub-model holds, as it is delivered.

    The server keeps the last values of these units, so that a sub-model can grow again. Merged by
    worker, what two units share is zero too if nobody holds both: with one holder of W it is
    divided by W, so with none it is nothing.
    """
    held = torch.stack(list(sub_models)).any(0)
    state = state if bool(held.all()) else zero(state, units, held)
    if not counts_as_zero or any(bool(kept.all()) for kept in sub_models):
        return state
    holders = Holders(units, next(iter(state.values())).device)
    for kept in sub_models:
        holders.add(kept, 1.0)
    zeroed = {
        name: torch.where(weight > 0, state[name], 0)
        for name, weight in holders.weights().items()
        if name not in units.buffers | units.frozen and not bool((weight > 0).all())
    }
    return {**state, **zeroed}
