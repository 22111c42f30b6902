"""How the end of a round is told."""

from __future__ import annotations

from adaptcl.engines.round_record import tell_round
from adaptcl.events import Event, RoundFinished, Warned
from adaptcl.strategies.strategy import Closed


def test_warnings_come_before_the_record_they_are_about() -> None:
    told: list[Event] = []
    closed = Closed(4, (), similarity=0.5, missing=(2,), warnings=("one", "two"))
    tell_round(told.append, closed, 12.5, 0.75, [2.0, 1.0])
    assert told[:2] == [Warned("one"), Warned("two")]
    assert isinstance(told[2], RoundFinished)
    record = told[2].record
    assert (record.round, record.virtual_time_s, record.accuracy) == (4, 12.5, 0.75)
    assert (record.similarity, record.missing, record.workers) == (0.5, (2,), ())


def test_a_worker_that_is_away_has_no_part_in_the_heterogeneity() -> None:
    told: list[Event] = []
    tell_round(told.append, Closed(1, ()), 1.0, None, [4.0, 0.0, 1.0])
    assert isinstance(told[0], RoundFinished)
    assert told[0].record.heterogeneity == 0.75
