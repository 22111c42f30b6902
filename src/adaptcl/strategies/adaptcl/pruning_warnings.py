"""Warnings about prunings: one has done harm, or the model or the settings prevent them.

A sub-model can lose much importance without harm if the rest makes up for it. So for a moderate
share, the loss has to show that it was too much. But a model that has hardly learned anything has
no loss to rise, and still loses what it was going to learn with. Beyond half of a sub-model's
importance the loss is not asked: the pruning has left the smaller part of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from adaptcl.records import WorkerRecord

_HARMFUL_JUMP = 1.0
"""A loss that rises by this much in a pruning (in nats; guessing among ten classes costs 2.3) shows
that the sub-model has forgotten what it knew."""

_MOST_LOST = 0.5
"""The share of the importance that no pruning should cut away at once. A parameter lies between two
units. So half of the parameters, the most that goes at once by default, are about 30 % of the units
where all layers can be cut, and less of the importance. More than half is lost where few layers
have to give everything."""


def warn_harmful_prunings(
    round_: int, records: Sequence[WorkerRecord], limit: float
) -> tuple[str, ...]:
    """One sentence on the most harmful pruning of a round, if any was.

    `limit` is the share of importance above which a jump of the loss counts as harm.
    """
    harmful = [
        record for record in records if _has_jumped(record, limit) or _is_gone(record, limit)
    ]
    if not harmful:
        return ()
    worst = max(harmful, key=lambda record: (_has_jumped(record, limit), record.importance_lost))
    enough = max(_enough(record, limit) for record in harmful)
    sentence = (
        f"Round {round_}: {len(harmful)} of {len(records)} workers pruned units that matter; "
        f"worker {worst.worker} cut away {worst.importance_lost:.0%} of its sub-model's importance"
    )
    if _has_jumped(worst, limit):
        return (
            f"{sentence} and its loss rose by {worst.loss_jump:.2f}. Raise `min_retention` to "
            f"{enough:.2f} to cut less or, in a run of many rounds, `strength`.",
        )
    return (f"{sentence}. Raise `min_retention` to {enough:.2f} to cut less.",)


def warn_never_prunes(first: int, rounds: int) -> str:
    """The run ends before its first pruning."""
    remedy = "raise `rounds`" if rounds < 2 else f"set `first_pruning` to {rounds} or less"
    last = f"the last of {rounds} rounds" if rounds > 1 else "the only round"
    return (
        f"Nobody will prune: the first pruning would be in round {first}, after {last}; {remedy}."
    )


def warn_not_worth_pruning(speed_up: float, least: float) -> str:
    """Workers differ, but pruning would bring little."""
    return (
        f"Nobody is pruned: rounds would become only {speed_up:.2f} times as fast, which does not "
        f"make up for what smaller models learn less; `least_speed_up` ({least:g}) sets the limit."
    )


def warn_cannot_get_smaller(smallest: float, unit_by_unit: float, workers: Sequence[int]) -> str:
    """Some workers need a smaller sub-model than the model allows.

    `unit_by_unit` is the smallest retention if units were not cut in blocks.
    """
    is_coarse = f"{smallest:.0%}" != f"{unit_by_unit:.0%}"
    finer = f" ({unit_by_unit:.0%} with `width_multiple` 1)" if is_coarse else ""
    return (
        f"Only {1 - smallest:.0%} of this model's parameters can be cut: {_names(workers)} cannot "
        f"get below {smallest:.0%}{finer}, but would have to in order to keep up; "
        "`adaptcl.describe(model, example)` says which layers are never cut, and why."
    )


def warn_slow_at_any_size(workers: Sequence[int]) -> str:
    """Some workers are too slow, and would be as slow with smaller sub-models."""
    one = len(workers) == 1
    return (
        f"The update time of {_names(workers)} does not depend on the size of "
        f"{'its sub-model' if one else 'their sub-models'}, so {'it is' if one else 'they are'} "
        "not pruned any further, and the others wait; the cause may be latency, or a processor "
        "that is not faster with fewer units."
    )


def _names(workers: Sequence[int]) -> str:
    who = "worker " if len(workers) == 1 else "workers "
    return who + " and ".join(filter(None, (", ".join(map(str, workers[:-1])), str(workers[-1]))))


def _enough(record: WorkerRecord, limit: float) -> float:
    """A retention at which this pruning would have cut away no more than is allowed.

    The least important units go first, so a part of a pruning takes a smaller part of the
    importance. A straight line between no pruning and this one is therefore on the safe side. Where
    little of a model can be cut, the result is far above any usual γ_min.
    """
    allowed = limit if _has_jumped(record, limit) else max(limit, _MOST_LOST)
    before = min(1.0, record.retention / (1 - record.pruned_rate))
    enough = before - (before - record.retention) * allowed / (record.importance_lost or 1.0)
    return math.ceil(100 * enough) / 100


def _has_jumped(record: WorkerRecord, limit: float) -> bool:
    return (record.importance_lost or 0) > limit and (record.loss_jump or 0) > _HARMFUL_JUMP


def _is_gone(record: WorkerRecord, limit: float) -> bool:
    return (record.importance_lost or 0) > max(limit, _MOST_LOST)
