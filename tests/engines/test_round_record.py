"""How the end of a round is told."""

from __future__ import annotations

from adaptcl.engines.loop import Traffic, tell_round
from adaptcl.events import Event, RoundFinished, Warned
from adaptcl.strategies.strategy import Closed


def test_warnings_come_before_the_record_they_are_about() -> None:
    told: list[Event] = []
    closed = Closed(4, (), similarity=0.5, missing=(2,), warnings=("one", "two"))
    traffic = Traffic()
    traffic.task_ended(30)
    traffic.answered(20)
    tell_round(told.append, closed, 12.5, 0.75, [2.0, 1.0], set(), traffic)
    assert told[:2] == [Warned("one"), Warned("two")]
    assert isinstance(told[2], RoundFinished)
    record = told[2].record
    assert (record.round, record.virtual_time_s, record.accuracy) == (4, 12.5, 0.75)
    assert (record.bytes_sent, record.bytes_received) == (30, 20)
    assert (record.similarity, record.missing, record.workers) == (0.5, (2,), ())


def test_a_worker_that_is_away_has_no_part_in_the_heterogeneity() -> None:
    told: list[Event] = []
    tell_round(told.append, Closed(1, ()), 1.0, None, [4.0, 2.0, 1.0], {1}, Traffic())
    assert isinstance(told[0], RoundFinished)
    assert told[0].record.heterogeneity == 0.75


def test_there_is_none_while_a_worker_that_was_asked_has_no_time_yet() -> None:
    told: list[Event] = []
    for closed in (Closed(1, ()), Closed(1, (), participants=(0, 2))):
        tell_round(told.append, closed, 1.0, None, [4.0, 0.0, 1.0], set(), Traffic())
    records = [event.record for event in told if isinstance(event, RoundFinished)]
    assert [record.heterogeneity for record in records] == [None, 0.75]
