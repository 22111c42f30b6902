from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptcl.config import configure
from adaptcl.errors import SettingError
from adaptcl.strategies import Job
from adaptcl.strategies.heterofl import HeteroFL, WidthSettings, window
from adaptcl.training import Arrival, Recipe
from adaptcl.units import retention

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def test_widths_for_another_number_of_workers_are_refused(with_batch_norm: Jobs) -> None:
    with pytest.raises(SettingError, match="worker_widths has 2 entries"):
        HeteroFL(with_batch_norm(3, 1), WidthSettings(worker_widths=(0.5, 1.0)))


def test_no_levels_at_all_are_refused(with_batch_norm: Jobs) -> None:
    with pytest.raises(SettingError, match="width_levels"):
        HeteroFL(with_batch_norm(3, 1), WidthSettings(width_levels=()))


def test_a_unit_is_averaged_over_those_who_hold_it(
    with_batch_norm: Jobs, answered: Answers
) -> None:
    strategy = HeteroFL(with_batch_norm(2, 1), WidthSettings(worker_widths=(0.5, 1.0)))
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


def test_units_nobody_holds_count_as_cut(with_batch_norm: Jobs, timeline: Timelines) -> None:
    strategy = HeteroFL(with_batch_norm(2, 1), WidthSettings(worker_widths=(0.25, 0.5)))
    timeline(strategy, times=[2, 1]).start().run()
    assert strategy.model()["1.weight"][2:].tolist() == [0.0, 0.0]


def test_sub_models_stay_the_same_and_nothing_is_on_record_as_pruned(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    job = with_batch_norm(2, 3)
    strategy = HeteroFL(job, WidthSettings(worker_widths=(0.5, 1.0)))
    line = timeline(strategy, times=[2, 1]).start().run()
    half = retention(job.units, window(job.units, 0.5, first=0))
    assert [[w.retention for w in closed.workers] for closed in line.closed] == [[half, 1.0]] * 3
    assert {w.pruned_rate for closed in line.closed for w in closed.workers} == {0.0}
    assert [closed.similarity for closed in line.closed] == [None] * 3


def test_a_worker_that_comes_back_has_its_width_again(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = HeteroFL(with_batch_norm(2, 4), WidthSettings(worker_widths=(0.5, 1.0)))
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
    strategy = HeteroFL(job, WidthSettings(worker_widths=widths, participants=1))
    line = timeline(strategy, times=[1] * 4).start()
    assert len(line.open) == 1
    line.run()
    assert [retention(job.units, kept) for kept in strategy.sub_models()] == [
        retention(job.units, window(job.units, width, first=0)) for width in widths
    ]
    # No worker can hold the second half of a layer, so none of it is delivered as it was drawn.
    assert strategy.model()["0.bias"][2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("widths", [(), "matched"])
def test_a_checkpoint_file_gives_the_same_continuation(
    with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path, widths: Any
) -> None:
    def new() -> HeteroFL:
        return HeteroFL(with_batch_norm(3, 4), WidthSettings(worker_widths=widths))

    line = timeline(new(), times=[5, 3, 2]).start().run(rounds=2)
    resumed = line.resumed(new(), tmp_path).run()
    line.run()
    resumed.assert_ends_like(line)


def test_matched_widths_follow_the_times_of_the_whole_model(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = HeteroFL(with_batch_norm(3, 4), WidthSettings(worker_widths="matched"))
    line = timeline(strategy, times=[4, 2, 1]).start().run(rounds=1)
    assert {record.retention for record in line.closed[0].workers} == {1.0}
    kept = [retention(strategy.units, kept) for kept in strategy.sub_models()]
    assert kept[0] < 1 / 4 < kept[1] < 1 / 2 < kept[2] == 1.0


def test_it_trains_without_the_lasso(with_batch_norm: Jobs) -> None:
    strategy = HeteroFL(with_batch_norm(2, 1, Recipe(strength=0.5)), WidthSettings())
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
