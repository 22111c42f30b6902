"""The end of a round, as every engine tells of it."""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.events import Listener, RoundFinished, Warned
from adaptcl.records import RoundRecord
from adaptcl.strategies.strategy import Closed


def tell_round(
    tell: Listener,
    closed: Closed,
    time_s: float,
    accuracy: float | None,
    update_times: Sequence[float],
) -> None:
    """Tell the warnings of a round that a strategy has closed, and its record.

    `update_times` are the latest of all workers; 0 for one that is away or was never asked. Where
    not everybody was, the heterogeneity is that of the workers drawn.
    """
    asked = closed.participants or range(len(update_times))
    for warning in closed.warnings:
        tell(Warned(warning))
    tell(
        RoundFinished(
            RoundRecord(
                round=closed.round,
                virtual_time_s=time_s,
                accuracy=accuracy,
                heterogeneity=heterogeneity([update_times[worker] for worker in asked]),
                workers=closed.workers,
                similarity=closed.similarity,
                missing=closed.missing,
                participants=closed.participants,
            )
        )
    )
