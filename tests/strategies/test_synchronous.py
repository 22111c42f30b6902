from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl import snapshot
from adaptcl.records import WorkerRecord
from adaptcl.strategies import Job, Reaction
from adaptcl.strategies.synchronous import Plan, Synchronous, SynchronousSettings
from adaptcl.training import Arrival, Recipe, Task
from adaptcl.units import State, retention

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]

PLAIN = SynchronousSettings()
DEADLINE = SynchronousSettings(deadline=1.5)


def weight(value: float) -> State:
    return {"weight": torch.tensor([[value]])}


def value(strategy: Synchronous) -> float:
    return float(strategy.model()["weight"])


class Round:
    """Hands answers to a strategy, worker by worker."""

    def __init__(self, strategy: Synchronous, answered: Answers) -> None:
        self.strategy = strategy
        self._answered = answered
        self.open: dict[int, Task] = {}
        self.take(strategy.start())

    def take(self, reaction: Reaction) -> Reaction:
        self.open.update({task.worker: task for task in reaction.tasks})
        return reaction

    def answer(self, worker: int, value: float = 1.0, seconds: float = 1.0) -> Reaction:
        arrival = self._answered(self.open.pop(worker), weight(value), seconds=seconds)
        return self.take(self.strategy.receive(arrival))


# The barrier ------------------------------------------------------------------------------------


def test_the_first_tasks_go_to_everybody_and_have_no_deadline(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(3, 5, recipe=Recipe(epochs=3))
    reaction = Synchronous(job, DEADLINE).start()
    assert [(task.worker, task.round) for task in reaction.tasks] == [(0, 1), (1, 1), (2, 1)]
    assert all(bool(task.kept.all()) and task.recipe == job.recipe for task in reaction.tasks)
    assert reaction.deadline is None
    assert reaction.closed is None


def test_a_round_closes_with_the_last_answer(one_weight: Jobs, answered: Answers) -> None:
    rounds = Round(Synchronous(one_weight(3, 2), PLAIN), answered)
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
def test_the_order_of_answers_changes_nothing(
    one_weight: Jobs, answered: Answers, order: list[int]
) -> None:
    rounds = Round(Synchronous(one_weight(5, 1), PLAIN), answered)
    for worker in order:
        last = rounds.answer(worker, 0.1 * worker, seconds=worker + 1)
    assert value(rounds.strategy) == pytest.approx(0.2, rel=2e-7)
    assert last.closed is not None
    assert [record.worker for record in last.closed.workers] == [0, 1, 2, 3, 4]


def test_it_is_finished_after_the_last_round(one_weight: Jobs, answered: Answers) -> None:
    rounds = Round(Synchronous(one_weight(2, 2), PLAIN), answered)
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


def overdue(one_weight: Jobs, answered: Answers, late_updates: str = "count") -> Round:
    """Round 2, after its deadline: worker 2 has not answered; the others sent 10 each."""
    settings = replace(DEADLINE, late_updates=late_updates)
    rounds = Round(Synchronous(one_weight(3, 9), settings), answered)
    for worker, seconds in ((0, 1.0), (1, 2.0), (2, 8.0)):
        reaction = rounds.answer(worker, 4.0, seconds)
    assert reaction.deadline == 1.5 * 8
    rounds.answer(0, 10.0, 1.0)
    rounds.answer(1, 10.0, 2.0)
    return rounds


def test_at_the_deadline_a_round_closes_with_who_has_answered(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = overdue(one_weight, answered)
    reaction = rounds.strategy.expired()
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [0, 1]
    assert reaction.closed.missing == (2,)
    assert [task.worker for task in reaction.tasks] == [0, 1]
    assert value(rounds.strategy) == 10
    assert [(t.worker, t.round) for t in rounds.strategy.outstanding()] == [(2, 2), (0, 3), (1, 3)]


def test_a_late_update_counts_in_the_next_round(one_weight: Jobs, answered: Answers) -> None:
    rounds = overdue(one_weight, answered)
    rounds.take(rounds.strategy.expired())
    assert rounds.answer(2, 40.0, seconds=20) == Reaction()
    rounds.answer(0, 10.0)
    closed = rounds.answer(1, 10.0)
    assert value(rounds.strategy) == 20
    assert closed.closed is not None
    assert [record.worker for record in closed.closed.workers] == [0, 1, 2]
    assert [task.worker for task in closed.tasks] == [0, 1, 2]


def test_a_late_update_is_dropped_if_so_set(one_weight: Jobs, answered: Answers) -> None:
    rounds = overdue(one_weight, answered, late_updates="drop")
    rounds.take(rounds.strategy.expired())
    again = rounds.answer(2, 40.0, seconds=20)
    assert [(task.worker, task.round) for task in again.tasks] == [(2, 3)]
    assert float(again.tasks[0].state["weight"]) == 10
    for worker in (0, 1, 2):
        closed = rounds.answer(worker, 10.0)
    assert value(rounds.strategy) == 10
    assert closed.closed is not None
    assert len(closed.closed.workers) == 3


def test_if_nobody_has_answered_the_first_answer_closes_the_round(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), DEADLINE), answered)
    rounds.answer(0)
    rounds.answer(1)
    assert rounds.strategy.expired() == Reaction()
    reaction = rounds.answer(1, 6.0, seconds=9.0)
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [1]
    assert reaction.closed.missing == (0,)
    assert value(rounds.strategy) == 6
    assert reaction.deadline == 1.5 * 9


def test_without_the_setting_there_is_no_deadline(one_weight: Jobs, answered: Answers) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    rounds.answer(0)
    assert rounds.answer(1).deadline is None


# Some of many -----------------------------------------------------------------------------------


FEW = SynchronousSettings(participants=3)


def workers_of(reaction: Reaction) -> list[int]:
    return [task.worker for task in reaction.tasks]


def drawn(one_weight: Jobs, answered: Answers, **settings: Any) -> tuple[Round, list[int]]:
    """The first round of three among ten, and who they are."""
    rounds = Round(Synchronous(one_weight(10, 9), replace(FEW, **settings)), answered)
    return rounds, sorted(rounds.open)


def test_each_round_asks_as_many_as_are_set_and_others_every_time(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, first = drawn(one_weight, answered)
    asked = [first]
    for _ in range(8):
        for worker in sorted(rounds.open):
            reaction = rounds.answer(worker, 1.0)
        assert reaction.closed is not None
        assert list(reaction.closed.participants) == asked[-1]
        assert [record.worker for record in reaction.closed.workers] == asked[-1]
        asked.append(workers_of(reaction))
    assert all(len(set(workers)) == 3 for workers in asked)
    assert len(set(map(tuple, asked))) > 5


def test_the_average_is_over_those_who_took_part(one_weight: Jobs, answered: Answers) -> None:
    rounds, first = drawn(one_weight, answered)
    for worker, sent in zip(first, (3.0, 6.0, 9.0), strict=True):
        rounds.answer(worker, sent)
    assert value(rounds.strategy) == 6


def test_where_everybody_is_asked_nobody_is_put_on_record_as_drawn(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert closed.participants == ()


def test_a_round_goes_on_without_a_participant_that_is_lost(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, (first, second, third) = drawn(one_weight, answered)
    rounds.answer(first, 2.0)
    assert rounds.strategy.lost(second) == Reaction()
    closed = rounds.answer(third, 4.0).closed
    assert closed is not None
    assert [record.worker for record in closed.workers] == [first, third]
    assert closed.participants == (first, second, third)
    assert value(rounds.strategy) == 3


def test_if_all_participants_are_lost_others_are_drawn_for_the_same_round(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, first = drawn(one_weight, answered)
    reactions = [rounds.strategy.lost(worker) for worker in first]
    assert reactions[:2] == [Reaction(), Reaction()]
    assert len(reactions[2].tasks) == 3
    assert not set(workers_of(reactions[2])) & set(first)
    assert {task.round for task in reactions[2].tasks} == {1}


def test_a_worker_that_comes_takes_a_place_that_is_free_and_no_other(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, first = drawn(one_weight, answered)
    outside = next(worker for worker in range(10) if worker not in first)
    rounds.strategy.lost(outside)
    assert rounds.strategy.joined(outside) == Reaction()
    rounds.answer(first[0])
    rounds.strategy.lost(first[1])
    assert workers_of(rounds.take(rounds.strategy.joined(outside))) == [outside]
    assert rounds.strategy.joined(first[1]) == Reaction()
    rounds.answer(first[2])
    closed = rounds.answer(outside).closed
    assert closed is not None
    assert closed.participants == tuple(sorted([*first, outside]))


def test_nobody_is_drawn_who_is_away_or_still_busy(one_weight: Jobs, answered: Answers) -> None:
    rounds, first = drawn(one_weight, answered, deadline=1.5)
    away = next(worker for worker in range(10) if worker not in first)
    rounds.strategy.lost(away)
    for worker in first[:2]:
        rounds.answer(worker)
    reaction = rounds.strategy.expired()
    assert reaction.closed is not None
    assert reaction.closed.missing == (first[2],)
    assert len(reaction.tasks) == 3
    assert not {away, first[2]} & set(workers_of(reaction))


def test_a_dropped_late_update_gives_its_worker_no_place_in_a_full_round(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, first = drawn(one_weight, answered, deadline=1.5, late_updates="drop")
    for worker in first[:2]:
        rounds.answer(worker)
    second = workers_of(rounds.take(rounds.strategy.expired()))
    assert rounds.answer(first[2], 40.0) == Reaction()
    rounds.strategy.lost(second[0])
    rounds.open.pop(second[0])
    assert workers_of(rounds.strategy.joined(first[2])) == [first[2]]


def test_with_fewer_workers_here_than_places_all_of_them_take_part(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds, first = drawn(one_weight, answered)
    for worker in range(10):
        if worker not in first[:2]:
            rounds.strategy.lost(worker)
    rounds.answer(first[0])
    reaction = rounds.answer(first[1])
    assert workers_of(reaction) == first[:2]


def test_a_resumed_run_draws_as_it_would_have_done(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    times = [float(10 - worker) for worker in range(8)]
    run = timeline(Halves(with_batch_norm(8, 7), FEW), times).start().run(3)
    again = run.resumed(Halves(with_batch_norm(8, 7), FEW), tmp_path).run()
    run.run()
    assert again.closed == run.closed
    assert all(len(closed.participants) == 3 for closed in run.closed)
    one, other = run.strategy.model(), again.strategy.model()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# Workers that go and come -----------------------------------------------------------------------


def test_a_round_does_not_wait_for_a_lost_worker(one_weight: Jobs, answered: Answers) -> None:
    rounds = Round(Synchronous(one_weight(3, 9), PLAIN), answered)
    rounds.answer(0, 2.0)
    rounds.answer(1, 4.0)
    reaction = rounds.strategy.lost(2)
    assert reaction.closed is not None
    assert value(rounds.strategy) == 3
    assert [task.worker for task in reaction.tasks] == [0, 1]


def test_the_update_of_a_worker_lost_after_it_answered_counts(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    rounds.answer(0, 2.0)
    assert rounds.strategy.lost(0) == Reaction()
    reaction = rounds.answer(1, 4.0)
    assert value(rounds.strategy) == 3
    assert [task.worker for task in reaction.tasks] == [1]


def test_a_worker_that_comes_back_takes_part_in_the_running_round(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    rounds.strategy.lost(1)
    rounds.answer(0, 6.0)
    reaction = rounds.take(rounds.strategy.joined(1))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(1, 2)]
    assert float(reaction.tasks[0].state["weight"]) == 6
    assert rounds.answer(0).closed is None
    assert rounds.answer(1).closed is not None


def test_when_all_are_lost_the_round_waits_for_somebody_to_come(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    assert rounds.strategy.lost(0) == rounds.strategy.lost(1) == Reaction()
    assert not rounds.strategy.finished
    rounds.take(rounds.strategy.joined(1))
    reaction = rounds.answer(1, 5.0)
    assert reaction.closed is not None
    assert value(rounds.strategy) == 5


def test_a_worker_that_is_here_already_gets_no_second_task(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    assert rounds.strategy.joined(0) == Reaction()


def test_a_worker_that_answered_left_and_came_back_counts_once(
    one_weight: Jobs, answered: Answers
) -> None:
    rounds = Round(Synchronous(one_weight(2, 9), PLAIN), answered)
    rounds.answer(0, 2.0)
    rounds.strategy.lost(0)
    rounds.take(rounds.strategy.joined(0))
    assert 0 not in rounds.open
    reaction = rounds.answer(1, 4.0)
    assert value(rounds.strategy) == 3
    assert reaction.closed is not None
    assert [record.worker for record in reaction.closed.workers] == [0, 1]
    assert [task.worker for task in reaction.tasks] == [0, 1]


def test_a_lost_worker_that_is_late_is_not_waited_for(one_weight: Jobs, answered: Answers) -> None:
    rounds = overdue(one_weight, answered)
    rounds.take(rounds.strategy.expired())
    rounds.strategy.lost(2)
    assert [task.worker for task in rounds.strategy.outstanding()] == [0, 1]
    reaction = rounds.take(rounds.strategy.joined(2))
    assert [(task.worker, task.round) for task in reaction.tasks] == [(2, 3)]


# Sub-models -------------------------------------------------------------------------------------


class Halves(Synchronous):
    """Everybody lacks unit 11, worker 1 also unit 0; the second round says it was pruned."""

    def plan(self, worker: int) -> Plan:
        kept = self.units.everything()
        kept[11] = False
        if worker == 1:
            kept[0] = False
        return Plan(kept, rate=0.25 if self.round == 2 else 0.0)

    def lasso_scale(self) -> float:
        return 2.0 * self.round

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        return (f"{len(records)} in round {self.round}",)


def test_subclasses_say_what_each_worker_gets(with_batch_norm: Jobs, answered: Answers) -> None:
    job = with_batch_norm(2, 3)
    strategy = Halves(job, PLAIN)
    one, other = strategy.start().tasks
    assert one.state["0.weight"].shape == (4, 3)
    assert other.state["0.weight"].shape == (3, 3)
    assert one.lasso_scale == 2
    strategy.receive(answered(one, one.state))
    reaction = strategy.receive(answered(other, other.state))
    assert reaction.closed is not None
    assert reaction.closed.warnings == ("2 in round 1",)
    assert reaction.closed.similarity is None
    assert [w.retention for w in reaction.closed.workers] == [
        retention(job.units, task.kept) for task in (one, other)
    ]
    for task in reaction.tasks:
        reaction = strategy.receive(answered(task, task.state))
    assert reaction.closed is not None
    # Three of four units in common, and all seven of the other layer.
    assert reaction.closed.similarity == pytest.approx((3 / 4 + 1) / 2)
    assert [record.pruned_rate for record in reaction.closed.workers] == [0.25, 0.25]


def test_units_that_no_worker_holds_count_as_cut(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(2, 3)
    strategy = Halves(job, PLAIN)
    strategy.start()
    model = strategy.model()
    assert not model["4.weight"][7].any()
    assert not model["3.weight"][7].any()
    assert torch.equal(model["0.weight"], job.state["0.weight"])
    assert torch.equal(job.state["4.weight"], torch.ones(8))
    assert [kept.int().tolist()[0] for kept in strategy.sub_models()] == [1, 0]


# Checkpoints ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path, stop: int
) -> None:
    job = with_batch_norm(3, 5)
    whole = timeline(Halves(job, PLAIN), [3.0, 2.0, 1.0]).start().run()
    broken = timeline(Halves(job, PLAIN), [3.0, 2.0, 1.0]).start().run(stop)
    resumed = broken.resumed(Halves(job, PLAIN), tmp_path).run()
    assert resumed.closed == whole.closed
    assert resumed.now == whole.now
    one, other = whole.strategy.model(), resumed.strategy.model()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("late_updates", ["count", "drop"])
def test_a_late_task_is_resumed_with_the_model_it_was_given(
    one_weight: Jobs, answered: Answers, tmp_path: Path, late_updates: str
) -> None:
    rounds = overdue(one_weight, answered, late_updates)
    closing = rounds.take(rounds.strategy.expired())
    snapshot.save(tmp_path / "file", rounds.strategy.snapshot())
    resumed = Synchronous(rounds.strategy.job, rounds.strategy.settings)
    resumed.restore(snapshot.load(tmp_path / "file"))
    for one, other in zip(rounds.strategy.outstanding(), resumed.outstanding(), strict=True):
        assert (one.worker, one.round) == (other.worker, other.round)
        assert torch.equal(one.state["weight"], other.state["weight"])
    assert closing.deadline is not None

    def went_on(strategy: Synchronous) -> tuple[float, Reaction]:
        tasks = {task.worker: task for task in strategy.outstanding()}
        for worker, sent in ((2, 40.0), (0, 10.0), (1, 12.0)):
            reaction = strategy.receive(answered(tasks[worker], weight(sent), seconds=worker + 1))
        return value(strategy), reaction

    uninterrupted, after = went_on(rounds.strategy), went_on(resumed)
    assert uninterrupted[0] == after[0]
    assert uninterrupted[1].closed == after[1].closed
    assert uninterrupted[1].deadline == after[1].deadline


def test_a_snapshot_does_not_change_when_the_run_goes_on(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    run = timeline(Halves(with_batch_norm(3, 5), PLAIN), [3.0, 2.0, 1.0]).start().run(2)
    tree = run.strategy.snapshot()
    snapshot.save(tmp_path / "before", tree)
    run.run()
    snapshot.save(tmp_path / "after", tree)
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
