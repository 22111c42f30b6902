"""A round waits for all of its workers and merges what they sent."""

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
    from tests.strategies.synchronous.conftest import Begun

Jobs = Callable[..., Job]


def test_the_first_tasks_go_to_everybody_and_have_no_deadline(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(3, 5, recipe=Recipe(epochs=3))
    reaction = Synchronous(job, SynchronousSettings(deadline=1.5)).start()
    assert [(task.worker, task.round) for task in reaction.tasks] == [(0, 1), (1, 1), (2, 1)]
    assert all(bool(task.kept.all()) and task.recipe == job.recipe for task in reaction.tasks)
    assert reaction.deadline is None
    assert reaction.closed is None


def test_a_round_closes_with_the_last_answer(
    begun: Begun,
) -> None:
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


def test_it_is_finished_after_the_last_round(
    begun: Begun,
) -> None:
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
