"""A round with a deadline closes without those who are late; what comes of their updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptcl.strategies import Reaction

if TYPE_CHECKING:
    from tests.strategies.synchronous.conftest import Begun, Overdue


def test_at_the_deadline_a_round_closes_with_who_has_answered(
    overdue: Overdue,
) -> None:
    rounds = overdue()
    reaction = rounds.strategy.expired()
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [0, 1]
    assert reaction.closed.missing == (2,)
    assert [task.worker for task in reaction.tasks] == [0, 1]
    assert rounds.value() == 10
    assert [(t.worker, t.round) for t in rounds.strategy.outstanding()] == [(2, 2), (0, 3), (1, 3)]


def test_a_late_update_counts_in_the_next_round(
    overdue: Overdue,
) -> None:
    rounds = overdue()
    rounds.take(rounds.strategy.expired())
    assert rounds.answer(2, 40.0, seconds=20) == Reaction()
    rounds.answer(0, 10.0)
    closed = rounds.answer(1, 10.0)
    assert rounds.value() == 20
    assert closed.closed is not None
    assert [record.worker for record in closed.closed.workers] == [0, 1, 2]
    assert [task.worker for task in closed.tasks] == [0, 1, 2]


def test_a_late_update_is_dropped_if_so_set(
    overdue: Overdue,
) -> None:
    rounds = overdue("drop")
    rounds.take(rounds.strategy.expired())
    again = rounds.answer(2, 40.0, seconds=20)
    assert [(task.worker, task.round) for task in again.tasks] == [(2, 3)]
    assert float(again.tasks[0].state["weight"]) == 10
    for worker in (0, 1, 2):
        closed = rounds.answer(worker, 10.0)
    assert rounds.value() == 10
    assert closed.closed is not None
    assert len(closed.closed.workers) == 3


def test_if_nobody_has_answered_the_first_answer_closes_the_round(
    begun: Begun,
) -> None:
    rounds = begun(2, 9, deadline=1.5)
    rounds.answer(0)
    rounds.answer(1)
    assert rounds.strategy.expired() == Reaction()
    reaction = rounds.answer(1, 6.0, seconds=9.0)
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [1]
    assert reaction.closed.missing == (0,)
    assert rounds.value() == 6
    assert reaction.deadline == 1.5 * 9


def test_a_round_is_on_record_without_those_who_are_still_at_an_earlier_one(
    overdue: Overdue,
) -> None:
    rounds = overdue()
    rounds.take(rounds.strategy.expired())
    for _ in range(2):
        rounds.answer(0)
        closed = rounds.answer(1).closed
        assert closed is not None
        assert closed.missing == (2,)
    rounds.answer(2, seconds=20)
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert [record.worker for record in closed.workers] == [0, 1, 2]
    assert closed.missing == ()


def test_without_the_setting_there_is_no_deadline(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    rounds.answer(0)
    assert rounds.answer(1).deadline is None
