"""Rounds: the barrier, deadlines, and workers that are lost or come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies import Job, Reaction
from adaptcl.strategies.synchronous import Synchronous, SynchronousSettings
from adaptcl.training import Recipe

if TYPE_CHECKING:
    from tests.strategies.synchronous.conftest import Begun, Overdue

Jobs = Callable[..., Job]


def test_the_first_tasks_go_to_everybody_and_have_no_deadline(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(3, 5, recipe=Recipe(epochs=3))
    reaction = Synchronous(job, SynchronousSettings(deadline=1.5)).start()
    assert [(task.worker, task.round) for task in reaction.tasks] == [(0, 1), (1, 1), (2, 1)]
    assert all(bool(task.kept.all()) and task.recipe == job.recipe for task in reaction.tasks)
    assert reaction.deadline is None
    assert reaction.closed is None


def test_a_round_closes_with_the_last_answer(begun: Begun) -> None:
    rounds = begun(3, 2)
    assert rounds.answer(1, 4.0, seconds=7) == Reaction()
    assert rounds.answer(2, 6.0, seconds=2) == Reaction()
    last = rounds.answer(0, 2.0, seconds=3)
    assert last.closed is not None
    assert last.closed.round == 1
    assert [(w.worker, w.update_time_s) for w in last.closed.workers] == [(0, 3), (1, 7), (2, 2)]
    assert last.closed.missing == ()
    assert [(task.worker, task.round) for task in last.tasks] == [(0, 2), (1, 2), (2, 2)]
    assert all(float(task.state["weight"]) == 4 for task in last.tasks)


@given(order=st.permutations(range(5)))
def test_the_order_of_answers_changes_nothing(begun: Begun, order: list[int]) -> None:
    rounds = begun(5, 1)
    for worker in order:
        last = rounds.answer(worker, 0.1 * worker, seconds=worker + 1)
    assert rounds.value() == pytest.approx(0.2, rel=2e-7)
    assert last.closed is not None
    assert [record.worker for record in last.closed.workers] == [0, 1, 2, 3, 4]


def test_it_is_finished_after_the_last_round(begun: Begun) -> None:
    rounds = begun(2, 2)
    for worker in (0, 1, 0):
        rounds.answer(worker)
        assert not rounds.strategy.finished
    last = rounds.answer(1)
    assert last.closed is not None
    assert last.closed.round == 2
    assert last.tasks == ()
    assert rounds.strategy.finished
    assert rounds.strategy.outstanding() == []
    assert rounds.strategy.joined(0) == rounds.strategy.lost(1) == Reaction()


# Deadlines --------------------------------------------------------------------------------------


def test_at_the_deadline_a_round_closes_with_who_has_answered(overdue: Overdue) -> None:
    rounds = overdue()
    reaction = rounds.strategy.expired()
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [0, 1]
    assert reaction.closed.missing == (2,)
    assert [task.worker for task in reaction.tasks] == [0, 1]
    assert rounds.value() == 10
    assert [(t.worker, t.round) for t in rounds.strategy.outstanding()] == [(2, 2), (0, 3), (1, 3)]


def test_a_late_update_counts_in_the_next_round(overdue: Overdue) -> None:
    rounds = overdue()
    rounds.take(rounds.strategy.expired())
    assert rounds.answer(2, 40.0, seconds=20) == Reaction()
    rounds.answer(0, 10.0)
    closed = rounds.answer(1, 10.0)
    assert rounds.value() == 20
    assert closed.closed is not None
    assert [record.worker for record in closed.closed.workers] == [0, 1, 2]
    assert [task.worker for task in closed.tasks] == [0, 1, 2]


def test_a_late_update_is_dropped_if_so_set(overdue: Overdue) -> None:
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


def test_if_nobody_has_answered_the_first_answer_closes_the_round(begun: Begun) -> None:
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


def test_a_round_is_recorded_without_those_who_are_still_at_an_earlier_one(
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


def test_without_the_setting_there_is_no_deadline(begun: Begun) -> None:
    rounds = begun(2, 9)
    rounds.answer(0)
    assert rounds.answer(1).deadline is None


# Coming and going -------------------------------------------------------------------------------


def test_a_round_does_not_wait_for_a_lost_worker(begun: Begun) -> None:
    rounds = begun(3, 9)
    rounds.answer(0, 2.0)
    rounds.answer(1, 4.0)
    reaction = rounds.strategy.lost(2)
    assert reaction.closed is not None
    assert rounds.value() == 3
    assert [task.worker for task in reaction.tasks] == [0, 1]


def test_who_was_lost_is_missing_until_it_is_back(begun: Begun) -> None:
    rounds = begun(3, 9)
    rounds.strategy.lost(2)
    for _ in range(2):
        rounds.answer(0)
        closed = rounds.answer(1).closed
        assert closed is not None
        assert closed.missing == (2,)
    rounds.take(rounds.strategy.joined(2))
    rounds.answer(2)
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert closed.missing == ()


def test_unless_it_came_back_and_answered(begun: Begun) -> None:
    rounds = begun(2, 9)
    rounds.strategy.lost(1)
    rounds.take(rounds.strategy.joined(1))
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert closed.missing == ()


def test_the_update_of_a_worker_lost_after_it_answered_counts(begun: Begun) -> None:
    rounds = begun(2, 9)
    rounds.answer(0, 2.0)
    assert rounds.strategy.lost(0) == Reaction()
    reaction = rounds.answer(1, 4.0)
    assert rounds.value() == 3
    assert [task.worker for task in reaction.tasks] == [1]


def test_a_worker_that_comes_back_takes_part_in_the_running_round(begun: Begun) -> None:
    rounds = begun(2, 9)
    rounds.strategy.lost(1)
    rounds.answer(0, 6.0)
    reaction = rounds.take(rounds.strategy.joined(1))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(1, 2)]
    assert float(reaction.tasks[0].state["weight"]) == 6
    assert rounds.answer(0).closed is None
    assert rounds.answer(1).closed is not None


def test_when_all_are_lost_the_round_waits_for_somebody_to_come(begun: Begun) -> None:
    rounds = begun(2, 9)
    assert rounds.strategy.lost(0) == rounds.strategy.lost(1) == Reaction()
    assert not rounds.strategy.finished
    rounds.take(rounds.strategy.joined(1))
    reaction = rounds.answer(1, 5.0)
    assert reaction.closed is not None
    assert rounds.value() == 5


def test_a_worker_that_is_here_already_gets_no_second_task(begun: Begun) -> None:
    rounds = begun(2, 9)
    assert rounds.strategy.joined(0) == Reaction()


def test_a_worker_that_answered_left_and_came_back_counts_once(begun: Begun) -> None:
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


def test_a_lost_worker_that_is_late_is_not_waited_for(overdue: Overdue) -> None:
    rounds = overdue()
    rounds.take(rounds.strategy.expired())
    rounds.strategy.lost(2)
    assert [task.worker for task in rounds.strategy.outstanding()] == [0, 1]
    reaction = rounds.take(rounds.strategy.joined(2))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(2, 3)]
