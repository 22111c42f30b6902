"""The figures of runs. Most tests look at figures that are composed, but not rendered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from PIL import Image

from adaptcl.errors import RunFolderError, SettingError
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.figures.drawing import compose_figures, draw
from adaptcl.report.figures.palette import looks
from adaptcl.report.figures.pictures import PictureOptions
from adaptcl.report.saved_run import Run
from adaptcl.strategies import STRATEGIES

pytestmark = pytest.mark.slow  # drawing takes a second a figure

MakeRun = Callable[..., Run]
Compose = Callable[..., dict[str, Figure]]

COMMON = ["overview", "accuracy-over-rounds", "accuracy-over-time", "heterogeneity"]
ALONE = [*COMMON, "timeline"]
"""The figures of a run that does not prune."""


@pytest.fixture(scope="session")
def two_runs(make_shared_run: MakeRun) -> list[Run]:
    return [
        make_shared_run("a", rounds=6),
        make_shared_run("b", strategy="adaptcl", rounds=6, adapts=True, final_accuracy=0.82),
    ]


@pytest.fixture(scope="session")
def drawn(two_runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The rendered figures of two runs."""
    folder = tmp_path_factory.mktemp("drawn") / "new" / "figures"
    return draw(compare(two_runs), folder)


@pytest.fixture(scope="session")
def six_methods(make_shared_run: MakeRun) -> list[Run]:
    methods = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "adaptcl", "heterofl")
    return [
        make_shared_run(
            f"{name}-{seed}",
            strategy=name,
            seed=seed,
            adapts=name in ("adaptcl", "heterofl"),
            final_accuracy=0.7 + 0.02 * seed,
        )
        for name in methods
        for seed in (1, 2, 3)
    ]


@pytest.fixture
def compose() -> Compose:
    return lambda runs, over_seeds=False: compose_figures(compare(runs, over_seeds=over_seeds))


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def has_colour(path: Path, colour: str) -> bool:
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return bool((pixels(path) == wanted).all(axis=-1).sum() > 50)


@pytest.mark.slow
def test_every_figure_is_drawn_into_its_folder(drawn: list[Path]) -> None:
    assert [path.name for path in drawn] == [
        f"{name}.png"
        for name in (*COMMON, "equal-time", "timeline", "update-times-adaptcl", "retention-adaptcl")
    ]
    assert sorted(drawn[0].parent.glob("[!.]*")) == sorted(drawn)


def test_every_figure_has_something_on_it_and_no_program_or_date_in_it(drawn: list[Path]) -> None:
    for path in drawn:
        image = pixels(path)
        assert min(image.shape[:2]) >= 400
        assert 0.01 < (image != 255).any(axis=-1).mean() < 0.7
        with Image.open(path) as opened:
            opened.load()
            assert set(opened.info) <= {"dpi"}


@pytest.mark.slow
def test_a_strategy_has_its_colour_in_every_figure(drawn: list[Path]) -> None:
    for path in drawn[: len(COMMON)]:
        for look in looks(["fedavg-s", "adaptcl"]):
            assert has_colour(path, look.colour)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_whatever_settings_matplotlib_has(
    drawn: list[Path], two_runs: list[Run], tmp_path: Path
) -> None:
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        before = dict(matplotlib.rcParams)
        again = draw(compare(two_runs), tmp_path)
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]


@pytest.mark.slow
def test_long_labels_stay_within_their_panel_and_their_figure(
    make_run: MakeRun, compose: Compose
) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    words = "samples=100, label_share=80, augmentation=false, first_pruning=2, sigma=2, jitter=0.1"
    runs = [replace(run, label=f"adaptcl ({words}, seed={seed})") for seed in range(2)]
    composed = compose(runs)
    assert len(composed) == len(ALONE) + 1 + 2 * len(runs)
    for figure in (composed["overview"], list(composed.values())[-1]):
        figure.draw_without_rendering()
        everything = figure.get_tightbbox()
        assert everything.x0 >= 0
        assert everything.x1 <= figure.get_figwidth()
    overview = composed["overview"]
    below = [axes.xaxis.label.get_window_extent() for axes in overview.axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(below))


def test_a_long_legend_takes_no_height_from_the_axes(make_run: MakeRun, compose: Compose) -> None:
    run = make_run("a")
    few = [replace(run, label=f"run {place}") for place in range(2)]
    many = [replace(run, label=f"a run with quite a long label, and it is {n}") for n in range(12)]
    short, tall = (compose(runs)["accuracy-over-rounds"] for runs in (few, many))
    assert tall.get_figheight() > 1.3 * short.get_figheight()
    assert tall.get_figwidth() == short.get_figwidth()


def test_only_a_run_that_prunes_has_figures_of_its_workers(
    make_run: MakeRun, compose: Compose
) -> None:
    assert list(compose([make_run("a")])) == ALONE


def test_the_overview_shows_the_workers_of_a_run_that_adapts(
    make_run: MakeRun, compose: Compose
) -> None:
    adapts = replace(make_run("own", strategy="my:Own", adapts=True), label="mine")
    dealt = replace(
        adapts,
        label="dealt",
        rounds=tuple(
            replace(record, workers=tuple(replace(w, pruned_rate=0.0) for w in record.workers))
            for record in adapts.rounds
        ),
    )
    overview = compose([dealt, adapts])["overview"]
    assert overview.axes[3].get_xlabel().endswith("mine")


def test_file_names_are_plain_and_distinct(make_run: MakeRun, compose: Compose) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    runs = [replace(run, label="My run: γ/2"), replace(run, label="my run 2")]
    assert list(compose(runs))[len(ALONE) + 1 :] == [
        "update-times-my-run-2",
        "retention-my-run-2",
        "update-times-my-run-2-2",
        "retention-my-run-2-2",
    ]


def test_gaps_in_the_records_are_no_obstacle(make_run: MakeRun, compose: Compose) -> None:
    run = make_run("a", strategy="adaptcl", rounds=6, adapts=True)
    first, second, third, *rest = run.rounds
    holey = (
        replace(first, accuracy=None, workers=first.workers[1:]),
        replace(second, heterogeneity=float("nan"), workers=second.workers * 2),
        replace(third, heterogeneity=None, workers=()),
        *rest,
    )
    unmeasured = tuple(replace(r, accuracy=None, workers=()) for r in run.rounds)
    runs = [replace(run, rounds=holey), replace(run, label="unmeasured", rounds=unmeasured)]
    compose(runs)["overview"].draw_without_rendering()
    assert list(compose(runs[1:])) == COMMON


def test_runs_without_a_finished_round_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    empty = replace(make_run("a"), rounds=())
    with pytest.raises(RunFolderError, match="nothing to draw"):
        draw(compare([empty]), tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_over_seeds_every_method_is_one_line_in_a_band_of_its_colour(
    six_methods: list[Run], compose: Compose
) -> None:
    composed = compose(six_methods, over_seeds=True)
    for name in COMMON[1:]:
        axes = composed[name].axes[0]
        labels = axes.get_legend_handles_labels()[1]
        marked = ["equal time, fedavg's final accuracy"] if name == COMMON[2] else []
        methods = ["fedavg", "fedavg-s", "fedasync-s", "ssp-s", "adaptcl", "heterofl"]
        assert labels == [*methods, *marked]
        colours = [to_hex(each.get_color()) for each in axes.lines if each.get_label() in methods]
        bands = [
            to_hex(to_rgba_array(band.get_facecolor())[0].tolist()) for band in axes.collections
        ]
        assert colours == bands
        assert len(set(colours)) == 6
        assert axes.get_title(loc="right") == "mean and range of 3 runs"
    assert {"update-times-adaptcl", "retention-heterofl"} < composed.keys()
    assert len(composed) == len(ALONE) + 5
    title = composed["retention-adaptcl"].axes[0].get_title(loc="left")
    assert title.endswith("adaptcl, mean of 3 runs")


def test_the_line_of_several_seeds_ends_at_the_mean_in_the_table(
    six_methods: list[Run], compose: Compose
) -> None:
    composed = compose(six_methods[:3], over_seeds=True)
    line, _ = composed["accuracy-over-time"].axes[0].lines
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(100 * (0.72 + 0.74 + 0.76) / 3)


def test_the_time_and_the_accuracy_that_runs_are_compared_by_are_marked(
    two_runs: list[Run], compose: Compose
) -> None:
    found = compare(two_runs)
    axes = compose(two_runs)["accuracy-over-time"].axes[0]
    upright, level = (np.asarray(line.get_data(), float) for line in axes.lines[-2:])
    assert found.at_time_s is not None
    assert found.target_value is not None
    assert upright[0] == pytest.approx([found.at_time_s / 60] * 2)
    assert level[1] == pytest.approx([100 * found.target_value] * 2)
    assert len(compose(two_runs[:1])["accuracy-over-time"].axes[0].lines) == 2


def test_a_method_has_one_colour_under_all_conditions(make_run: MakeRun, compose: Compose) -> None:
    runs = [
        make_run(f"{name}{sigma}", strategy=name, settings={"sigma": sigma})
        for sigma in (2.0, 5.0)
        for name in ("fedavg", "adaptcl")
    ]
    (axes,) = compose(runs)["accuracy-over-rounds"].axes
    drawn = [(line.get_color(), line.is_dashed()) for line in axes.lines]
    colours = [look.colour for look in looks(["fedavg", "adaptcl"])]
    assert drawn == [(colour, dashed) for dashed in (False, True) for colour in colours]


def test_one_figure_shows_who_is_ahead_at_equal_time_and_first_to_equal_accuracy(
    six_methods: list[Run], compose: Compose
) -> None:
    rows = compare(six_methods).rows
    left, right = compose(six_methods, over_seeds=True)["equal-time"].axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == [r.group.label for r in rows]
    assert left.get_title(loc="left") == "Accuracy at 2.4 min"
    title = right.get_title(loc="left").replace("\n", " ")
    assert title == "Time to fedavg's final accuracy"
    shown = [
        float(np.asarray(line.get_xdata()).item())
        for line in left.lines
        if line.get_markersize() == 8
    ]
    means = [np.mean([o.value_at_time for o in row.outcomes]) for row in rows]
    assert [100 * mean for mean in means] == pytest.approx(shown)


def test_a_single_run_has_no_band(two_runs: list[Run], compose: Compose) -> None:
    axes = compose(two_runs, over_seeds=True)["accuracy-over-time"].axes[0]
    assert len(axes.collections) == 0
    assert axes.get_title(loc="right") == ""


def test_figures_are_drawn_in_every_format_asked_for_and_none_is_removed(
    two_runs: list[Run], tmp_path: Path
) -> None:
    first = draw(compare(two_runs[:1]), tmp_path, PictureOptions.parse("svg"))
    assert [path.name for path in first] == [f"{name}.svg" for name in ALONE]
    again = draw(compare(two_runs[:1]), tmp_path, PictureOptions.parse("pdf, svg"))
    assert {path.suffix for path in again} == {".pdf", ".svg"}
    assert [path.read_bytes() for path in again[1::2]] == [path.read_bytes() for path in first]
    pdf = again[0].read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf  # TrueType: publishers refuse fonts of type 3
    assert draw(compare(two_runs[:1]), tmp_path, PictureOptions.parse("none")) == []
    assert set(tmp_path.iterdir()) == {*first, *again}
    with pytest.raises(SettingError, match="no figure format 'gif'; there are png, svg, pdf"):
        PictureOptions.parse("png,gif")


def test_without_titles_a_figure_still_says_what_it_shows(two_runs: list[Run]) -> None:
    found = compose_figures(compare(two_runs), titles=False)
    assert {axes.get_title(loc="left") for each in found.values() for axes in each.axes} == {""}
    left, right = found["equal-time"].axes
    assert left.get_xlabel() == "test accuracy (%) at 3.9 min"
    assert right.get_xlabel().replace("\n", " ").endswith("to fedavg-s's final accuracy")


def test_the_losses_of_tests_and_of_training_stand_beside_each_other(make_run: MakeRun) -> None:
    run = make_run("a", rounds=2)
    rounds = tuple(
        replace(
            record,
            test_loss=1.0 / record.round,
            workers=tuple(replace(w, train_loss=2.0 / record.round) for w in record.workers),
        )
        for record in run.rounds
    )
    left, right = compose_figures(compare([replace(run, rounds=rounds)]))["loss"].axes
    assert np.asarray(left.lines[0].get_ydata()).tolist() == [1.0, 0.5]
    assert np.asarray(right.lines[0].get_ydata()).tolist() == [2.0, 1.0]
    assert (left.get_ylabel(), right.get_ylabel()) == ("test loss", "training loss")
    assert "loss" not in compose_figures(compare([run])), "older runs did not record it"


def test_nine_methods_are_told_apart_without_colours(make_run: MakeRun) -> None:
    runs = [make_run(name, strategy=name, rounds=30) for name in STRATEGIES]
    for name in ("accuracy-over-time", "accuracy-over-rounds", "heterogeneity"):
        axes = compose_figures(compare(runs))[name].axes[0]
        lines = [line for line in axes.lines if line.get_label() in STRATEGIES]
        assert len({line.get_marker() for line in lines}) == len(STRATEGIES)
        assert {line.get_markevery() for line in lines} == {(0, 3), (1, 3), (2, 3)}
