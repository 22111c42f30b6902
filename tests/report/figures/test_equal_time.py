from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_hex

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.figures.equal_time import equal_time_figure
from adaptcl.report.saved_run import Run
from adaptcl.report.table import comparison_table

pytestmark = pytest.mark.slow  # drawing takes a second a figure

MakeRun = Callable[..., Run]


def test_an_interval_ends_where_values_do_and_times_read_as_in_the_table(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{seed}", strategy=name, seed=seed, final_accuracy=end, round_s=round_s)
        for name, round_s in (("fedavg", 100.0), ("adaptcl", 0.2))
        for seed, end in ((1, 0.9), (2, 0.1))
    ]
    compared = compare(runs, target=0.08)
    left, right = equal_time_figure(compared, titles=True).axes
    paths = [lines.get_paths()[0] for lines in left.collections]
    intervals = [np.asarray(path.vertices)[:, 0].tolist() for path in paths]
    assert all(0 <= low < high <= 100 for low, high in intervals)
    table = comparison_table(compared)
    column = table.headings.index("time to 8 %")
    shown = [text.get_text() for text in right.texts]
    assert [row[column].split(" ")[0] for row in table.rows] == [
        text.split(" ")[0] for text in shown
    ]


def test_a_time_that_was_never_reached_has_an_open_mark_where_the_run_ended(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, round_s=50.0, final_accuracy=0.7),
    ]
    figure = equal_time_figure(compare(runs), titles=True)
    _, right = figure.axes
    assert [text.get_text() for text in right.texts if text.get_text()] == ["13.3 min", "> 8.3 min"]
    reached, missed = (line for line in right.lines if line.get_markersize() == 8)
    assert to_hex(missed.get_color()) == "#ffffff" != to_hex(reached.get_color())
    (legend,) = figure.legends
    assert [each.get_text() for each in legend.get_texts()] == ["not reached when the run ended"]
    assert right.get_title(loc="left") == "Time to fedavg's final accuracy"


def test_while_the_baseline_is_unfinished_there_is_no_time_to_show(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg", finished=False), make_run("b", strategy="adaptcl")]
    figure = equal_time_figure(compare(runs), titles=True)
    assert len(figure.axes[1].lines) == len(figure.legends) == 0
    figure.draw_without_rendering()


def test_under_several_conditions_rows_stand_below_the_name_of_theirs(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{sigma}", strategy=name, rounds=10, settings={"sigma": sigma})
        for name in ("fedavg", "adaptcl")
        for sigma in (2.0, 5.0)
    ]
    left, _ = equal_time_figure(compare(runs), titles=True).axes
    ticks = sorted(
        (float(place), label.get_text())
        for place, label in zip(left.get_yticks(), left.get_yticklabels(), strict=True)
    )
    methods = ["fedavg", "adaptcl"]
    assert [label for _, label in ticks] == ["sigma=2", *methods, "sigma=5", *methods]
    colours = [to_hex(line.get_color()) for line in left.lines if line.get_markersize() == 8]
    assert colours[:2] == colours[2:], "a method has one colour"
