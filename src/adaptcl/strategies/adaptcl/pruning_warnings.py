"""What AdaptCL tells the user of prunings: that one did harm, or that none will make rounds faster.

Warnings decide nothing. What was told once is remembered, also in checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from adaptcl.errors import enumerated, name_workers
from adaptcl.pruning import unmeasured_layers
from adaptcl.pruning.budget import smallest_retention
from adaptcl.records import WorkerRecord
from adaptcl.storage import Remembered
from adaptcl.strategies.adaptcl.guards import GuardedRates
from adaptcl.units import UnitMap

_HARMFUL_JUMP = 1.0
"""A loss that rises by this much in a pruning (in nats; guessing among ten classes costs 2.3) shows
that the sub-model has forgotten what it knew."""

_MOST_LOST = 0.75
"""The share of the importance that no pruning should cut away at once, whatever the loss says: a
model that has hardly learned anything has no loss to rise. Where all layers can be cut, a pruning
to a fifth of the parameters takes less than 0.6 and does no harm (docs/how-it-works.md)."""

_BY_FAR = 3.0  # times the fastest update; below that, others do not wait long for a small sub-model


# Before the first pruning -----------------------------------------------------------------------


def warn_never_prunes(first: int, rounds: int) -> tuple[str, ...]:
    """That the run ends before the round `first`, in which workers would prune first."""
    if first <= rounds:
        return ()
    remedy = "raise `rounds`" if rounds < 2 else f"set `first_pruning` to {rounds} or less"
    last = f"the last of {rounds} rounds" if rounds > 1 else "the only round"
    return (
        f"Nobody will prune: the first pruning would be in round {first}, after {last}; {remedy}.",
    )


# When the server has decided --------------------------------------------------------------------


class WarningsOnce(Remembered):
    """Warnings of what the server decides at every pruning interval, told only once."""

    remembered: ClassVar[tuple[str, ...]] = ("_told",)

    def __init__(self) -> None:
        self._told: set[str] = set()

    def little_gain(
        self, decided: GuardedRates, for_any_gain: GuardedRates, least_speed_up: float
    ) -> tuple[str, ...]:
        """That workers differ, but too little for pruning to pay.

        `for_any_gain` is what would be decided if no gain were too small.
        """
        would_prune, prunes = (
            max(each.rates.values(), default=0) > 0 for each in (for_any_gain, decided)
        )
        if prunes or not would_prune or not self._is_new("gain"):
            return ()
        return (
            f"Nobody is pruned: rounds would become only {for_any_gain.speed_up:.2f} times as "
            "fast, which does not make up for what smaller models learn less; `least_speed_up` "
            f"({least_speed_up:g}) sets the limit.",
        )

    def too_large(
        self, wanted: Sequence[float], accepted: float, units: UnitMap, width_multiple: int
    ) -> tuple[str, ...]:
        """That the model does not let workers become as small as they would have to be.

        `wanted` are the retentions at which workers would be as fast as the fastest; from
        `accepted` on they are close enough to the smallest that there is.
        """
        stopped = [worker for worker, retention in enumerate(wanted) if retention < accepted]
        if not stopped or not self._is_new("size"):
            return ()
        smallest = smallest_retention(units, width_multiple)
        return (warn_cannot_get_smaller(smallest, smallest_retention(units), stopped),)

    def unmeasured(self, order: str, units: UnitMap) -> tuple[str, ...]:
        """That the order has nothing to tell the units of some layers apart by."""
        layers = unmeasured_layers(order, units)
        if not layers or not self._is_new("unmeasured"):
            return ()
        names = dict.fromkeys(layer.place_in_block for layer in layers)
        named = enumerated([repr(name) if name else "the model itself" for name in names])
        return (
            f"The pruning order {order!r} finds no feature maps of {named}, so units there all "
            "count alike; the orders 'l1' and 'fpgm' measure weights instead.",
        )

    def slow_at_any_size(self, slow: Sequence[int]) -> tuple[str, ...]:
        """Once for each worker, that pruning it further would not make it faster."""
        new = [worker for worker in slow if self._is_new(f"slow {worker}")]
        if not new:
            return ()
        whose, who = (
            ("its sub-model", "it is") if len(new) == 1 else ("their sub-models", "they are")
        )
        return (
            f"The update time of {name_workers(new)} does not depend on the size of {whose}, so "
            f"{who} not pruned any further, and the others wait; the cause may be latency, or a "
            "processor that is not faster with fewer units.",
        )

    def slow_at_the_floor(
        self, times: Mapping[int, float], smallest: Collection[int], min_retention: float
    ) -> tuple[str, ...]:
        """That workers which may not become smaller still take much longer than the fastest.

        `times` are the update times of all whose present size is measured; `smallest` are those
        that γ_min keeps from being cut further.
        """
        fastest = min(times.values(), default=0.0)
        slow = [w for w in smallest if w in times and times[w] > _BY_FAR * fastest]
        if not slow or not self._is_new("floor"):
            return ()
        longest = max(times[worker] for worker in slow) / fastest
        have, takes = ("has", "takes") if len(slow) == 1 else ("have", "take up to")
        whom = name_workers(slow)
        return (
            f"{whom[0].upper()}{whom[1:]} {have} the smallest sub-model that `min_retention` "
            f"({min_retention:g}) allows, and still {takes} {longest:.1f} times as long as the "
            "fastest worker, so the others wait; a lower `min_retention` makes rounds shorter.",
        )

    def _is_new(self, warning: str) -> bool:
        """Whether this has not been told yet; from now on it has."""
        is_new = warning not in self._told
        self._told.add(warning)
        return is_new


def warn_cannot_get_smaller(smallest: float, unit_by_unit: float, workers: Sequence[int]) -> str:
    """`unit_by_unit` is the smallest retention if units were not cut in blocks."""
    is_coarse = f"{smallest:.0%}" != f"{unit_by_unit:.0%}"
    finer = f" ({unit_by_unit:.0%} with `width_multiple` 1)" if is_coarse else ""
    return (
        f"Only {1 - smallest:.0%} of this model's parameters can be cut: {name_workers(workers)} "
        f"cannot get below {smallest:.0%}{finer}, but would have to in order to keep up; "
        "`adaptcl.describe(model, example)` says which layers are never cut, and why."
    )


# When workers have pruned -----------------------------------------------------------------------


def warn_harmful_prunings(
    round_: int, records: Sequence[WorkerRecord], limit: float
) -> tuple[str, ...]:
    """One sentence on the most harmful pruning of a round, if one lost more than `limit`."""
    most = max(limit, _MOST_LOST)
    jumped = [r for r in records if _lost(r) > limit and (r.loss_jump or 0) > _HARMFUL_JUMP]
    gone = [r for r in records if _lost(r) > most and r not in jumped]
    if not jumped and not gone:
        return ()
    worst = max(jumped or gone, key=_lost)
    enough = max([_enough(r, limit) for r in jumped] + [_enough(r, most) for r in gone])
    sentence = (
        f"Round {round_}: {len(jumped + gone)} of {len(records)} workers pruned units that matter; "
        f"worker {worst.worker} cut away {_lost(worst):.0%} of its sub-model's importance"
    )
    if jumped:
        return (
            f"{sentence} and its loss rose by {worst.loss_jump:.2f}. Raise `min_retention` to "
            f"{enough:.2f} to cut less or, in a run of many rounds, `strength`.",
        )
    return (f"{sentence}. Raise `min_retention` to {enough:.2f} to cut less.",)


def _lost(record: WorkerRecord) -> float:
    return record.importance_lost or 0.0


def _enough(record: WorkerRecord, allowed: float) -> float:
    """A retention at which this pruning would have cut away no more importance than is allowed.

    The least important units go first, so a part of a pruning takes a smaller part of the
    importance. A straight line between no pruning and this one is therefore on the safe side.
    """
    before = min(1.0, record.retention / (1 - record.pruned_rate))
    enough = before - (before - record.retention) * allowed / _lost(record)
    return math.ceil(100 * enough) / 100
