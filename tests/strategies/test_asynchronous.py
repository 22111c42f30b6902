from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptcl.strategies import Job
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, add_change
from adaptcl.training import Task, Update

Jobs = Callable[..., Job]
Timelines = Callable[..., Any]


class Watched(Asynchronous):
    """Adds the workers' changes and remembers how stale they were."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, AsynchronousSettings())
        self.seen: list[tuple[int, int]] = []

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        self.seen.append((update.worker, staleness))
        self.state = add_change(self.state, update.state, task.state, 1.0, self.units.buffers)


VAR = "norm.running_var"


def var(value: float) -> dict[str, Tensor]:
    return {VAR: torch.tensor([value], dtype=torch.float64)}


def test_everybody_goes_on_as_soon_as_it_has_answered(
    one_weight: Jobs, timeline: Timelines
) -> None:
    line = timeline(Watched(one_weight(3, 2)), times=[5, 3, 2]).start().run()
    assert line.arrivals == [(2, 2), (3, 1), (4, 2), (5, 0), (6, 1), (10, 0)]


def test_staleness_counts_the_merges_since_the_pull(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = Watched(one_weight(3, 2))
    timeline(strategy, times=[5, 3, 2]).start().run()
    # Worker 0 pulls twice, at 0 s and 5 s: merges at 2, 3 and 4 s come between, then one at 6 s.
    assert strategy.seen == [(2, 0), (1, 1), (2, 1), (0, 3), (1, 2), (0, 1)]


def test_as_many_merges_as_there_are_workers_make_a_round_on_record(
    one_weight: Jobs, timeline: Timelines
) -> None:
    line = timeline(Watched(one_weight(3, 2)), times=[5, 3, 2]).start().run()
    assert [closed.round for closed in line.closed] == [1, 2]
    assert [[r.worker for r in closed.workers] for closed in line.closed] == [[2, 1, 2], [0, 1, 0]]


def test_each_worker_counts_its_own_rounds(one_weight: Jobs, timeline: Timelines) -> None:
    line = timeline(Watched(one_weight(2, 3)), times=[4, 1]).start()
    line.step()
    assert {worker: task.round for worker, (_, task) in line.open.items()} == {0: 1, 1: 2}


def test_a_lost_worker_is_not_waited_for(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = Watched(one_weight(2, 3))
    line = timeline(strategy, times=[10, 1]).start().run(rounds=1)
    line.lose(0)
    line.run()
    assert strategy.done == [0, 3]
    assert [closed.round for closed in line.closed] == [1, 2]
    assert len(line.closed[-1].workers) == 1, "the last round holds what was left over"


def test_losing_the_last_worker_under_way_ends_the_run_and_closes_its_round(
    one_weight: Jobs, timeline: Timelines
) -> None:
    line = timeline(Watched(one_weight(2, 1)), times=[10, 1]).start()
    line.step()
    assert not line.closed
    line.lose(0)
    assert line.strategy.finished
    assert [closed.round for closed in line.closed] == [1]


def test_while_everybody_is_away_the_run_waits_for_them(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = Watched(one_weight(2, 2))
    line = timeline(strategy, times=[2, 1]).start()
    line.step()
    line.lose(0)
    line.lose(1)
    assert not strategy.finished
    line.join(1)
    line.join(0)
    line.run()
    assert strategy.done == [2, 2]


def test_a_worker_that_comes_back_does_the_round_it_was_lost_in(
    one_weight: Jobs, timeline: Timelines
) -> None:
    line = timeline(Watched(one_weight(2, 4)), times=[4, 1]).start()
    line.step()
    line.lose(1)
    line.join(1)
    assert line.open[1][1].round == 2


def test_a_snapshot_stays_as_it_was_while_the_run_goes_on(
    one_weight: Jobs, timeline: Timelines
) -> None:
    line = timeline(Watched(one_weight(2, 3)), times=[2, 1]).start().run(rounds=1)
    tree = line.strategy.snapshot()
    done = list(tree["done"])
    line.run()
    assert tree["done"] == done


def test_a_change_is_what_was_sent_less_what_was_pulled() -> None:
    state, sent, pulled = ({"w": torch.tensor([value])} for value in (10.0, 7.0, 5.0))
    assert add_change(state, sent, pulled, 0.25, ())["w"].item() == 10.5
    assert state["w"].item() == 10.0, "open tasks share these tensors"


def test_counters_take_the_largest_value() -> None:
    state, sent, pulled = ({"norm.num_batches_tracked": torch.tensor(n)} for n in (12, 9, 3))
    assert add_change(state, sent, pulled, 0.5, ())["norm.num_batches_tracked"].item() == 12


def test_whole_numbers_that_count_nothing_stay_as_they_are() -> None:
    state, sent, pulled = ({"index": torch.tensor([n])} for n in (3, 1000, 3))
    assert add_change(state, sent, pulled, 0.5, ())["index"].item() == 3


def test_running_statistics_are_mixed_not_added_as_changes() -> None:
    def mixed(weight: float) -> float:
        state = add_change(var(0.3), var(0.1), var(1.0), weight, buffers={VAR})
        return state[VAR].item()

    assert mixed(1 / 9) == pytest.approx(0.8 * 0.3 + 0.2 * 0.1)
    assert mixed(1.0) == mixed(1.5) == pytest.approx(0.1), "never more than what was sent"


def test_statistics_follow_weights_that_everybody_moves_the_same_way() -> None:
    """All pull a variance of 1 and send 9, again and again: the model's ends near 9, not above."""
    state = var(1.0)
    for _ in range(50):
        state = add_change(state, var(9.0), var(1.0), weight=0.1, buffers={VAR})
    assert 8.9 < state[VAR].item() < 9.0
