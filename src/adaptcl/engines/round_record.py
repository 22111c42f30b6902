"""The end of a round, as every engine tells of it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from adaptcl.engines.heterogeneity import of_those_present
from adaptcl.engines.traffic import Traffic
from adaptcl.events import Listener, RoundFinished, Warned
from adaptcl.records import RoundRecord
from adaptcl.strategies.strategy import Closed


def tell_round(
    tell: Listener,
    closed: Closed,
    time_s: float,
    accuracy: float | None,
    update_times: Sequence[float],
    away: Container[int],
    traffic: Traffic,
) -> None:
    """Tell the warnings of a round that a strategy has closed, and its record.

    `update_times` are the latest of all workers; 0 where there is none yet. Where not everybody
    was asked, the heterogeneity is that of the workers drawn.
    """
    sent, received = traffic.of_round()
    asked = closed.participants or range(len(update_times))
    for warning in closed.warnings:
        tell(Warned(warning))
    tell(
        RoundFinished(
            RoundRecord(
                round=closed.round,
                virtual_time_s=time_s,
                accuracy=accuracy,
                heterogeneity=of_those_present(update_times, asked, away),
                workers=closed.workers,
                similarity=closed.similarity,
                missing=closed.missing,
                participants=closed.participants,
                bytes_sent=sent,
                bytes_received=received,
            )
        )
    )
