from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.runs.result import FinishedRun
from adaptcl.strategies import Job
from adaptcl.strategies.heterofl import FedRolex, WidthSettings, window
from adaptcl.training import Arrival

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def halves(job: Job) -> FedRolex:
    return FedRolex(job, WidthSettings(worker_widths=(0.5,) * job.workers))


def test_the_window_moves_on_by_one_unit_a_round_and_around_the_end(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    line = timeline(halves(with_batch_norm(1, 6)), times=[1]).start()
    windows = []
    for _ in range(5):
        windows.append(line.open[0][1].kept[:4].int().tolist())
        line.step()
    assert windows == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]]


@given(width=st.floats(0.01, 1.0), start=st.integers(0, 100))
def test_in_as_many_rounds_as_a_layer_has_units_each_gets_equally_many_turns(
    with_batch_norm: Jobs, width: float, start: int
) -> None:
    units = with_batch_norm(1, 1).units
    for layer in units.layers:
        n = len(layer.units)
        turns = torch.stack([window(units, width, start + t) for t in range(n)]).sum(0)
        assert len(set(turns[list(layer.units)].tolist())) == 1


def test_in_one_round_narrow_windows_lie_in_wide_ones(with_batch_norm: Jobs) -> None:
    strategy = FedRolex(with_batch_norm(3, 1), WidthSettings(worker_widths=(0.2, 0.6, 1.0)))
    narrow, middle, wide = (task.kept for task in strategy.start().tasks)
    assert not bool((narrow & ~middle).any() or (middle & ~wide).any())


def test_units_outside_the_window_keep_their_values(
    with_batch_norm: Jobs, answered: Answers
) -> None:
    job = with_batch_norm(1, 2)
    strategy = halves(job)
    (task,) = strategy.start().tasks
    sent = {**task.state, "0.bias": torch.tensor([7.0, 8.0])}
    (second,) = strategy.receive(answered(task, sent)).tasks
    # The window has moved on; the model is nevertheless whole, and nothing in it counts as cut.
    before = job.state["0.bias"].tolist()
    assert strategy.model()["0.bias"].tolist() == [7.0, 8.0, *before[2:]]
    assert second.state["0.bias"].tolist() == [8.0, before[2]]


def test_nothing_is_on_record_as_pruned(with_batch_norm: Jobs, timeline: Timelines) -> None:
    line = timeline(halves(with_batch_norm(2, 3)), times=[2, 1]).start().run()
    assert {w.pruned_rate for closed in line.closed for w in closed.workers} == {0.0}


def test_a_worker_that_is_never_drawn_has_its_width_all_the_same(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = FedRolex(
        with_batch_norm(3, 2), WidthSettings(worker_widths=(0.5,) * 3, participants=1)
    )
    timeline(strategy, times=[1] * 3).start().run()
    assert [int(kept.sum()) for kept in strategy.sub_models()] == [2 + 4] * 3


def test_a_worker_that_comes_back_gets_the_window_of_the_round(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = halves(with_batch_norm(2, 5))
    line = timeline(strategy, times=[2, 1]).start()
    line.lose(0)
    line.run(rounds=2)
    line.join(0)
    assert torch.equal(line.open[0][1].kept, line.open[1][1].kept)
    assert line.open[0][1].kept[:4].int().tolist() == [0, 0, 1, 1]


def test_a_checkpoint_file_gives_the_same_continuation(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    def new() -> FedRolex:
        return FedRolex(with_batch_norm(3, 5), WidthSettings())

    line = timeline(new(), times=[5, 3, 2]).start().run(rounds=2)
    resumed = line.resumed(new(), tmp_path)
    assert [task.kept.tolist() for _, task in resumed.open.values()] == [
        task.kept.tolist() for _, task in line.open.values()
    ]
    resumed.run()
    line.run()
    resumed.assert_ends_like(line)


def test_it_learns_the_digits_though_nobody_holds_the_whole_model(
    learn: Callable[..., FinishedRun],
) -> None:
    assert learn("fedrolex", worker_widths=[0.5, 0.5, 0.75, 0.75]).summary.accuracy > 0.85
