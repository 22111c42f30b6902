from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from PIL import Image

from adaptcl.errors import RunFolderError
from adaptcl.report import Run, draw, panels
from adaptcl.report.comparison import groups
from adaptcl.report.palette import looks

MakeRun = Callable[..., Run]

COMMON = ["overview.png", "accuracy-over-rounds.png", "accuracy-over-time.png", "heterogeneity.png"]


@pytest.fixture
def two_runs(make_run: MakeRun) -> list[Run]:
    return [
        make_run("a", rounds=6),
        make_run("b", strategy="adaptcl", rounds=6, adapts=True, final_accuracy=0.82),
    ]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def has_colour(path: Path, colour: str) -> bool:
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return bool((pixels(path) == wanted).all(axis=-1).sum() > 50)


def test_every_figure_is_written_where_it_was_asked_for(
    two_runs: list[Run], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "figures"
    paths = list(draw(two_runs, folder).paths)
    assert [path.name for path in paths] == [
        *COMMON,
        "update-times-adaptcl.png",
        "retention-adaptcl.png",
    ]
    assert sorted(folder.glob("[!.]*")) == sorted(paths)


def test_every_figure_has_something_on_it(two_runs: list[Run], tmp_path: Path) -> None:
    for path in draw(two_runs, tmp_path).paths:
        image = pixels(path)
        assert min(image.shape[:2]) >= 600
        assert 0.01 < (image != 255).any(axis=-1).mean() < 0.7


def test_the_same_runs_give_the_same_bytes(two_runs: list[Run], tmp_path: Path) -> None:
    first = draw(two_runs, tmp_path / "first").paths
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        second = draw(two_runs, tmp_path / "second").paths
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_drawing_leaves_no_setting_of_matplotlib_behind(
    two_runs: list[Run], tmp_path: Path
) -> None:
    before = dict(matplotlib.rcParams)
    draw(two_runs, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_no_program_or_date_is_written_into_the_image(two_runs: list[Run], tmp_path: Path) -> None:
    for path in draw(two_runs, tmp_path).paths:
        with Image.open(path) as image:
            image.load()
            assert set(image.info) <= {"dpi"}


def test_a_strategy_has_its_colour_in_every_figure(two_runs: list[Run], tmp_path: Path) -> None:
    blue, orange = (look.colour for look in looks(two_runs))
    alone = looks(two_runs[1:])[0].colour
    assert alone == orange
    for path in draw(two_runs, tmp_path).paths[: len(COMMON)]:
        assert has_colour(path, orange)
        assert has_colour(path, blue)


def test_all_known_strategies_differ_in_colour(make_run: MakeRun) -> None:
    known = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "dc-asgd-a-s", "adaptcl", "heterofl")
    names = (*known, "fedrolex", "fedbuff", "mine", "yours")
    runs = [make_run(name, strategy=name) for name in names]
    assert len({look.colour for look in looks(runs)}) == len(names)


def test_a_strategy_keeps_its_colour_where_it_occurs_once(make_run: MakeRun) -> None:
    strategies = ("adaptcl", "fedavg", "adaptcl", "heterofl", "adaptcl")
    runs = [make_run(str(place), strategy=name) for place, name in enumerate(strategies)]
    drawn = looks(runs)
    for place in (0, 1, 3):
        assert looks([runs[place]]) == [drawn[place]]


def seen(colour: str, kind: str) -> np.ndarray:
    """Where a colour lies in CIELAB, in which even steps look even, as people see it."""
    share = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(_COLOUR_VISION[kind] @ linear, 0, 1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


_XYZ = np.array(
    [[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1094, 0.8728]]
)  # of linear sRGB, relative to white
_COLOUR_VISION = {  # after Machado, Oliveira and Fernandes (2009)
    "common": np.eye(3),
    "without red": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "without green": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "without blue": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}


@pytest.mark.parametrize("kind", _COLOUR_VISION)
@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-s", "adaptcl"])
def test_ten_runs_of_one_strategy_have_ten_colours_that_everybody_can_tell_apart(
    make_run: MakeRun, strategy: str, kind: str
) -> None:
    runs = [make_run(str(place), strategy=strategy, seed=place) for place in range(10)]
    places = [seen(look.colour, kind) for look in looks(runs)]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2))
    # A difference of 2 can just be seen where colours touch; thin lines take far more.
    assert nearest > (35 if kind == "common" else 18)


def test_a_repeated_strategy_has_no_colour_that_resembles_another_strategys(
    make_run: MakeRun,
) -> None:
    others = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "dc-asgd-a-s", "heterofl", "fedrolex")
    strategies = (*others, *["adaptcl"] * 4)
    runs = [make_run(str(place), strategy=name) for place, name in enumerate(strategies)]
    places = [seen(look.colour, "common") for look in looks(runs)]
    for own, other in itertools.product(places[len(others) + 1 :], places[: len(others)]):
        assert np.linalg.norm(own - other) > 20


def test_no_two_of_very_many_runs_look_the_same(make_run: MakeRun) -> None:
    runs = [make_run(name, strategy=name) for name in ("fedavg", "adaptcl")]
    assert len(set(looks(runs * 20))) == 40


def test_long_labels_stay_within_their_panel_and_their_figure(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    words = "samples=100, label_share=80, augmentation=false, first_pruning=2, sigma=2, jitter=0.1"
    runs = [replace(run, label=f"adaptcl ({words}, seed={seed})") for seed in range(3)]
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    draw(runs, tmp_path / "figures")
    assert len(figures) == len(COMMON) + 2 * len(runs)
    for figure in figures:
        figure.draw_without_rendering()
        everything = figure.get_tightbbox()
        assert everything.x0 >= 0
        assert everything.x1 <= figure.get_figwidth()
    below = [axes.xaxis.label.get_window_extent() for axes in figures[0].axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(below))


def test_a_long_legend_takes_no_height_from_the_axes(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("a")
    few = [replace(run, label=f"run {place}") for place in range(2)]
    many = [replace(run, label=f"a run with quite a long label, and it is {n}") for n in range(12)]
    sizes = [
        pixels(draw(runs, tmp_path / name).paths[1]).shape
        for name, runs in (("f", few), ("m", many))
    ]
    assert sizes[1][0] > 1.3 * sizes[0][0]
    assert sizes[1][1] == sizes[0][1]


def test_a_run_that_never_prunes_has_no_figure_of_its_own(
    make_run: MakeRun, tmp_path: Path
) -> None:
    assert [path.name for path in draw([make_run("a")], tmp_path / "figures").paths] == COMMON


def test_file_names_are_plain_and_distinct(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    runs = [replace(run, label="My run: γ/2"), replace(run, label="my run 2")]
    names = [path.name for path in draw(runs, tmp_path / "figures").paths[len(COMMON) :]]
    assert names == [
        "update-times-my-run-2.png",
        "retention-my-run-2.png",
        "update-times-my-run-2-2.png",
        "retention-my-run-2-2.png",
    ]


def test_gaps_in_what_was_recorded_are_no_obstacle(make_run: MakeRun, tmp_path: Path) -> None:
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
    assert all(path.exists() for path in draw(runs, tmp_path / "one").paths)
    assert len(draw(runs[1:], tmp_path / "two").paths) == len(COMMON)


def test_runs_without_a_finished_round_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    empty = replace(make_run("a"), rounds=())
    with pytest.raises(RunFolderError, match="nothing to draw"):
        draw([empty], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_of_very_many_workers_bands_are_drawn_and_not_a_line_for_each(make_run: MakeRun) -> None:
    run = make_run("many", strategy="adaptcl", workers=400, rounds=6, adapts=True)
    axes = Figure().subplots(1, 3)
    (group,), (look,) = groups([run]), looks([run])
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


@pytest.fixture
def six_methods(make_run: MakeRun) -> list[Run]:
    methods = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "adaptcl", "heterofl")
    return [
        make_run(
            f"{name}-{seed}",
            strategy=name,
            seed=seed,
            adapts=name in ("adaptcl", "heterofl"),
            final_accuracy=0.7 + 0.02 * seed,
        )
        for name in methods
        for seed in (1, 2, 3)
    ]


def drawn_figures(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run], folder: Path, *, over_seeds: bool
) -> dict[str, Figure]:
    """The figures as they are when they are saved, by file name."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    paths = draw(runs, folder, over_seeds=over_seeds).paths
    return {path.name: figure for path, figure in zip(paths, figures, strict=True)}


def test_over_seeds_every_method_is_one_line_in_a_band_of_its_colour(
    six_methods: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch, six_methods, tmp_path, over_seeds=True)
    for name in COMMON[1:]:
        axes = figures[name].axes[0]
        labels = axes.get_legend_handles_labels()[1]
        assert labels == ["fedavg", "fedavg-s", "fedasync-s", "ssp-s", "adaptcl", "heterofl"]
        colours = [to_hex(each.get_color()) for each in axes.lines if each.get_label() in labels]
        bands = [
            to_hex(to_rgba_array(band.get_facecolor())[0].tolist()) for band in axes.collections
        ]
        assert colours == bands
        assert len(set(colours)) == 6
        assert axes.get_title(loc="right") == "mean and range of 3 runs"
    assert {"update-times-adaptcl.png", "retention-heterofl.png"} < figures.keys()
    assert len(figures) == len(COMMON) + 4
    assert (
        figures["retention-adaptcl.png"]
        .axes[0]
        .get_title(loc="left")
        .endswith("adaptcl, mean of 3 runs")
    )


def test_the_line_of_several_seeds_ends_at_the_mean_that_the_table_gives(
    six_methods: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch, six_methods[:3], tmp_path, over_seeds=True)
    line, _ = figures["accuracy-over-time.png"].axes[0].lines
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(100 * (0.72 + 0.74 + 0.76) / 3)


def test_a_single_run_has_no_band(
    two_runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_figures(monkeypatch, two_runs, tmp_path, over_seeds=True)
    axes = figures["accuracy-over-time.png"].axes[0]
    assert len(axes.collections) == 0
    assert axes.get_title(loc="right") == ""


def test_no_two_runs_of_many_share_a_colour(six_methods: list[Run], make_run: MakeRun) -> None:
    own = [make_run(f"own-{place}", strategy=f"own-{place}") for place in range(12)]
    colours = [look.colour for look in looks([*six_methods, *own])]
    assert len(set(colours)) == len(colours) == 30


def test_a_retention_that_differs_from_seed_to_seed_shows_how_far(make_run: MakeRun) -> None:
    runs = [make_run(str(seed), strategy="adaptcl", seed=seed, adapts=True) for seed in (1, 2)]
    last = runs[1].rounds[-1]
    workers = (replace(last.workers[0], retention=0.6), *last.workers[1:])
    other = replace(runs[1], rounds=(*runs[1].rounds[:-1], replace(last, workers=workers)))
    axes = Figure().subplots(1, 2)
    for panel, together in zip(axes, (runs, [runs[0], other]), strict=True):
        (group,) = groups(together, over_seeds=True)
        panels.retention(panel, group, looks([runs[0]])[0])
    assert len(axes[0].collections) == 0
    (spread,) = axes[1].collections
    assert spread.get_paths()[0].vertices[:, 1].tolist() == pytest.approx([0.4, 0.6])


def test_a_worker_that_was_away_at_first_is_not_called_fastest_at_first(make_run: MakeRun) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    away = tuple(replace(r, workers=r.workers[:3]) for r in run.rounds[:2])
    labels = []
    for rounds in (run.rounds, (*away, *run.rounds[2:])):
        axes = Figure().subplots()
        panels.update_times(axes, groups([replace(run, rounds=rounds)])[0])
        labels.append(axes.get_legend_handles_labels()[1])
    assert labels[0] == ["worker 0, slowest at first", "worker 3, fastest at first"]
    assert labels[1] == ["worker 0, slowest at first", "worker 3, fastest in its first round (3)"]


def test_a_comparison_does_not_stand_among_pictures_of_the_last_one(
    six_methods: list[Run], tmp_path: Path
) -> None:
    draw(six_methods, tmp_path, over_seeds=True)
    (tmp_path / "mine.png").write_bytes(b"")
    drawn = draw(six_methods[:3], tmp_path, over_seeds=True)
    assert [path.name for path in drawn.paths] == COMMON
    assert "retention-heterofl.png" in drawn.removed
    assert drawn.others == ("mine.png",)
    assert {path.name for path in tmp_path.glob("*.png")} == {*COMMON, "mine.png"}
