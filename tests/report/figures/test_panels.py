from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from adaptcl.report.comparisons.groups import group_runs
from adaptcl.report.figures import panels
from adaptcl.report.figures.palette import looks
from adaptcl.report.saved_run import Run

pytestmark = pytest.mark.slow  # drawing takes a second a figure

MakeRun = Callable[..., Run]


def test_of_very_many_workers_bands_are_drawn_and_not_a_line_for_each(make_run: MakeRun) -> None:
    run = make_run("many", strategy="adaptcl", workers=400, rounds=2, adapts=True)
    axes = Figure().subplots(1, 3)
    (group,), (look,) = group_runs([run]), looks([run.strategy])
    panels.update_times(axes[0], group)
    panels.retention(axes[1], group, look)
    panels.update_time_change(axes[2], group, look)
    assert [each.get_label() for each in axes[0].collections] == ["all workers", "nine tenths"]
    assert [line.get_label() for line in axes[0].lines] == ["median"]
    all_of_them = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    times = [worker.update_time_s for record in run.rounds for worker in record.workers]
    assert max(all_of_them) == pytest.approx(max(times))
    assert min(all_of_them) == pytest.approx(min(times))
    assert len(axes[1].patches) == 0
    assert len(axes[1].collections) == 1
    assert len(axes[2].lines) == 2


def test_a_retention_that_differs_from_seed_to_seed_shows_how_far(make_run: MakeRun) -> None:
    runs = [make_run(str(seed), strategy="adaptcl", seed=seed, adapts=True) for seed in (1, 2)]
    last = runs[1].rounds[-1]
    workers = (replace(last.workers[0], retention=0.6), *last.workers[1:])
    other = replace(runs[1], rounds=(*runs[1].rounds[:-1], replace(last, workers=workers)))
    axes = Figure().subplots(1, 2)
    for panel, together in zip(axes, (runs, [runs[0], other]), strict=True):
        (group,) = group_runs(together, over_seeds=True)
        panels.retention(panel, group, looks(["adaptcl"])[0])
    assert len(axes[0].collections) == 0
    (spread,) = axes[1].collections
    assert spread.get_paths()[0].vertices[:, 1].tolist() == pytest.approx([0.4, 0.6])


def test_a_worker_that_was_away_at_first_is_not_called_fastest_at_first(make_run: MakeRun) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    away = tuple(replace(r, workers=r.workers[:3]) for r in run.rounds[:2])
    labels = []
    for rounds in (run.rounds, (*away, *run.rounds[2:])):
        axes = Figure().subplots()
        panels.update_times(axes, group_runs([replace(run, rounds=rounds)])[0])
        labels.append(axes.get_legend_handles_labels()[1])
    assert labels[0] == ["worker 0, slowest at first", "worker 3, fastest at first"]
    assert labels[1] == ["worker 0, slowest at first", "worker 3, fastest in its first round (3)"]
