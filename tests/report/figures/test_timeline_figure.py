from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes

from adaptcl.report.comparison import group_runs
from adaptcl.report.figures.timeline_figure import timeline_figure
from adaptcl.report.saved_run import Run

MakeRun = Callable[..., Run]


def seconds(axes: Axes, phase: int, worker: int) -> float:
    """How long the bars of a phase are, in minutes of the axis."""
    bars = axes.collections[4 * worker + phase]
    return float(sum(np.ptp(np.asarray(path.vertices)[:, 0]) for path in bars.get_paths()))


def test_the_fastest_worker_waits_without_pruning_and_hardly_with_it(make_run: MakeRun) -> None:
    runs = [make_run("a", rounds=12), make_run("b", strategy="adaptcl", rounds=12, adapts=True)]
    figure = timeline_figure(group_runs(runs))
    first, last, _, pruned = figure.axes
    # Three rounds of 100 s are shown; worker 3 needs 40 s and waits 60 s in each of them.
    assert [seconds(first, phase, 3) for phase in range(4)] == pytest.approx([0.5, 1, 0.5, 3])
    assert seconds(last, 3, 3) == pytest.approx(3)
    assert seconds(first, 3, 0) == pytest.approx(0)
    assert seconds(pruned, 3, 3) < 1
    assert figure.axes[1].get_title(loc="right").startswith("fedavg-s: workers wait 30 %")


def test_of_many_workers_and_methods_a_choice_is_shown(make_run: MakeRun) -> None:
    names = ("fedavg", "fedavg-s", "ssp-s", "adaptcl", "heterofl")
    runs = [make_run(name, strategy=name, workers=50) for name in names]
    figure = timeline_figure(group_runs(runs))
    shown = [len(axes.get_yticks()) for axes in figure.axes]
    assert shown == [8] * 10
    assert figure.axes[0].get_yticks().tolist()[0] == 0
