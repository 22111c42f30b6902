from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaptcl.config.config import configure
from adaptcl.errors import SettingError
from adaptcl.runs.result import FinishedRun
from adaptcl.strategies import Job
from adaptcl.strategies.heterofl import (
    FedRolex,
    HeteroFL,
    HeteroFLSettings,
    deal_widths,
    window,
)
from adaptcl.training import Arrival, Recipe
from adaptcl.units import retention, trace

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def test_widths_for_another_number_of_workers_are_refused(with_batch_norm: Jobs) -> None:
    with pytest.raises(SettingError, match="worker_widths has 2 entries"):
        HeteroFL(with_batch_norm(3, 1), HeteroFLSettings(worker_widths=(0.5, 1.0)))


def test_no_levels_at_all_are_refused(with_batch_norm: Jobs) -> None:
    with pytest.raises(SettingError, match="width_levels"):
        HeteroFL(with_batch_norm(3, 1), HeteroFLSettings(width_levels=()))


def test_a_unit_is_averaged_over_those_who_hold_it(
    with_batch_norm: Jobs, answered: Answers
) -> None:
    strategy = HeteroFL(with_batch_norm(2, 1), HeteroFLSettings(worker_widths=(0.5, 1.0)))
    narrow, wide = strategy.start().tasks
    assert narrow.state["0.bias"].shape == (2,)
    assert wide.state["0.bias"].shape == (4,)
    sent = [
        {**task.state, "0.bias": torch.full_like(task.state["0.bias"], value)}
        for task, value in ((narrow, 1.0), (wide, 5.0))
    ]
    strategy.receive(answered(narrow, sent[0], samples=3))
    strategy.receive(answered(wide, sent[1], samples=1))
    # (3·1 + 1·5) / 4 where both hold the unit, 5 where only the wide one does.
    assert strategy.model()["0.bias"].tolist() == [2.0, 2.0, 5.0, 5.0]


def test_sub_models_stay_the_same_and_nothing_is_on_record_as_pruned(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    job = with_batch_norm(2, 3)
    strategy = HeteroFL(job, HeteroFLSettings(worker_widths=(0.5, 1.0)))
    line = timeline(strategy, times=[2, 1]).start().run()
    half = retention(job.units, window(job.units, 0.5, first=0))
    assert [[w.retention for w in closed.workers] for closed in line.closed] == [[half, 1.0]] * 3
    assert {w.pruned_rate for closed in line.closed for w in closed.workers} == {0.0}
    assert [closed.similarity for closed in line.closed] == [None] * 3


def test_a_worker_that_comes_back_has_its_width_again(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = HeteroFL(with_batch_norm(2, 4), HeteroFLSettings(worker_widths=(0.5, 1.0)))
    line = timeline(strategy, times=[2, 1]).start()
    line.lose(0)
    line.run(rounds=2)
    line.join(0)
    assert torch.equal(line.open[0][1].kept, window(strategy.units, 0.5, first=0))
    assert line.open[0][1].round == 3


def test_workers_that_are_never_drawn_have_their_widths_all_the_same(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    job = with_batch_norm(4, 1)
    widths = (0.25, 0.5, 0.5, 0.25)
    strategy = HeteroFL(job, HeteroFLSettings(worker_widths=widths, participants=1))
    line = timeline(strategy, times=[1] * 4).start()
    assert len(line.open) == 1
    line.run()
    assert [retention(job.units, kept) for kept in strategy.sub_models()] == [
        retention(job.units, window(job.units, width, first=0)) for width in widths
    ]
    # No worker can hold the second half of a layer, so none of it is delivered as it was drawn.
    assert strategy.model()["0.bias"][2:].tolist() == [0.0, 0.0]


def test_matched_widths_follow_the_times_of_the_whole_model(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = HeteroFL(with_batch_norm(3, 4), HeteroFLSettings(worker_widths="matched"))
    line = timeline(strategy, times=[4, 2, 1]).start().run(rounds=1)
    assert {record.retention for record in line.closed[0].workers} == {1.0}
    kept = [retention(strategy.units, kept) for kept in strategy.sub_models()]
    assert kept[0] < 1 / 4 < kept[1] < 1 / 2 < kept[2] == 1.0


def test_it_trains_without_the_lasso(with_batch_norm: Jobs) -> None:
    strategy = HeteroFL(with_batch_norm(2, 1, Recipe(strength=0.5)), HeteroFLSettings())
    assert {task.recipe.strength for task in strategy.start().tasks} == {0.0}


def test_batch_norm_is_static_unless_told() -> None:
    def samples(**given: Any) -> int:
        return configure({"strategy": "heterofl", **given}).fresh_statistics

    assert samples() == 2000
    assert samples(static_batch_norm=False) == 0
    assert samples(fresh_statistics=500) == 500


def test_averaging_by_unit_is_its_own_default_and_nobody_elses() -> None:
    def aggregation(strategy: str, **given: str) -> Any:
        return configure({"strategy": strategy, **given}).strategy.aggregation

    assert aggregation("heterofl") == aggregation("fedrolex") == "by-unit"
    assert aggregation("fedavg-s") == "by-worker"
    assert aggregation("adaptcl") == "by-change"
    assert aggregation("heterofl", aggregation="by-worker") == "by-worker"


# Widths -----------------------------------------------------------------------------------------


def test_levels_go_to_equal_groups_and_the_widest_to_the_fastest() -> None:
    dealt = deal_widths(HeteroFLSettings(width_levels=(1.0, 0.25, 0.5)), workers=6)
    assert dealt == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]


@given(st.integers(1, 40))
def test_the_fastest_worker_always_has_the_whole_model(workers: int) -> None:
    dealt = list(deal_widths(HeteroFLSettings(), workers))
    assert len(dealt) == workers
    assert dealt[-1] == 1.0
    assert dealt == sorted(dealt)


def test_widths_can_be_given_worker_by_worker() -> None:
    assert tuple(deal_widths(HeteroFLSettings(worker_widths=(0.3, 1.0, 0.7)), 3)) == (0.3, 1.0, 0.7)


def test_a_word_other_than_matched_is_refused() -> None:
    with pytest.raises(SettingError) as refused:
        configure({"strategy": "heterofl", "worker_widths": "equal"})
    assert str(refused.value) == (
        "worker_widths is 'equal', but it must be a list of numbers, above 0 and at most 1, or "
        "matched."
    )


# FedRolex ---------------------------------------------------------------------------------------


def halves(job: Job) -> FedRolex:
    return FedRolex(job, HeteroFLSettings(worker_widths=(0.5,) * job.workers))


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
    strategy = FedRolex(with_batch_norm(3, 1), HeteroFLSettings(worker_widths=(0.2, 0.6, 1.0)))
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


def test_it_learns_the_digits_though_nobody_holds_the_whole_model(
    learn: Callable[..., FinishedRun],
) -> None:
    assert learn("fedrolex", worker_widths=[0.5, 0.5, 0.75, 0.75]).summary.accuracy > 0.85


# Widths ------------------------------------------------------------------------------------------


def test_a_window_is_the_first_units_of_every_layer(with_batch_norm: Jobs) -> None:
    kept = window(with_batch_norm(1, 1).units, width=0.3, first=0)
    # Layers of four and eight units: ⌈1.2⌉ and ⌈2.4⌉.
    assert kept[:4].int().tolist() == [1, 1, 0, 0]
    assert kept[4:].int().tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@given(width=st.floats(1e-6, 1.0))
def test_a_window_has_a_part_of_every_layer_but_never_none(
    with_batch_norm: Jobs, width: float
) -> None:
    units = with_batch_norm(1, 1).units
    kept = window(units, width, first=0)
    for layer in units.layers:
        count, n = int(kept[list(layer.units)].sum()), len(layer.units)
        assert 1 <= count <= n
        assert width * n - 1e-6 <= count < width * n + 1


@given(widths=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)))
def test_a_narrow_sub_model_is_contained_in_a_wider_one(
    with_batch_norm: Jobs, widths: tuple[float, float]
) -> None:
    units = with_batch_norm(1, 1).units
    narrow, wide = (window(units, width, first=0) for width in sorted(widths))
    assert not bool((narrow & ~wide).any())


def test_a_width_that_divides_a_layer_is_not_rounded_up_by_floating_point() -> None:
    units = trace(nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1)), torch.zeros(1, 1))
    assert 0.07 * 100 > 7
    assert int(window(units, 0.07, first=0).sum()) == 7
