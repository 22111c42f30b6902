"""Workers that are lost, and workers that come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptcl.strategies import Reaction

if TYPE_CHECKING:
    from tests.strategies.synchronous.conftest import Begun, Overdue


def test_a_round_does_not_wait_for_a_lost_worker(
    begun: Begun,
) -> None:
    rounds = begun(3, 9)
    rounds.answer(0, 2.0)
    rounds.answer(1, 4.0)
    reaction = rounds.strategy.lost(2)
    assert reaction.closed is not None
    assert rounds.value() == 3
    assert [task.worker for task in reaction.tasks] == [0, 1]


def test_who_was_lost_is_missing_in_the_round_whose_task_it_had(
    begun: Begun,
) -> None:
    rounds = begun(3, 9)
    rounds.strategy.lost(2)
    rounds.answer(0)
    first = rounds.answer(1).closed
    rounds.answer(0)
    second = rounds.answer(1).closed
    assert first is not None
    assert first.missing == (2,)
    assert second is not None
    assert second.missing == ()


def test_unless_it_came_back_and_answered(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    rounds.strategy.lost(1)
    rounds.take(rounds.strategy.joined(1))
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert closed.missing == ()


def test_the_update_of_a_worker_lost_after_it_answered_counts(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    rounds.answer(0, 2.0)
    assert rounds.strategy.lost(0) == Reaction()
    reaction = rounds.answer(1, 4.0)
    assert rounds.value() == 3
    assert [task.worker for task in reaction.tasks] == [1]


def test_a_worker_that_comes_back_takes_part_in_the_running_round(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    rounds.strategy.lost(1)
    rounds.answer(0, 6.0)
    reaction = rounds.take(rounds.strategy.joined(1))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(1, 2)]
    assert float(reaction.tasks[0].state["weight"]) == 6
    assert rounds.answer(0).closed is None
    assert rounds.answer(1).closed is not None


def test_when_all_are_lost_the_round_waits_for_somebody_to_come(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    assert rounds.strategy.lost(0) == rounds.strategy.lost(1) == Reaction()
    assert not rounds.strategy.finished
    rounds.take(rounds.strategy.joined(1))
    reaction = rounds.answer(1, 5.0)
    assert reaction.closed is not None
    assert rounds.value() == 5


def test_a_worker_that_is_here_already_gets_no_second_task(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    assert rounds.strategy.joined(0) == Reaction()


def test_a_worker_that_answered_left_and_came_back_counts_once(
    begun: Begun,
) -> None:
    rounds = begun(2, 9)
    rounds.answer(0, 2.0)
    rounds.strategy.lost(0)
    rounds.take(rounds.strategy.joined(0))
    assert 0 not in rounds.open
    reaction = rounds.answer(1, 4.0)
    assert rounds.value() == 3
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [0, 1]
    assert [task.worker for task in reaction.tasks] == [0, 1]


def test_a_lost_worker_that_is_late_is_not_waited_for(
    overdue: Overdue,
) -> None:
    rounds = overdue()
    rounds.take(rounds.strategy.expired())
    rounds.strategy.lost(2)
    assert [task.worker for task in rounds.strategy.outstanding()] == [0, 1]
    reaction = rounds.take(rounds.strategy.joined(2))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(2, 3)]
