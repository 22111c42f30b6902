from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from adaptcl.errors import RunFolderError
from adaptcl.report import Run, draw, panels
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
    paths = draw(two_runs, folder)
    assert [path.name for path in paths] == [
        *COMMON,
        "update-times-adaptcl.png",
        "retention-adaptcl.png",
    ]
    assert sorted(folder.iterdir()) == sorted(paths)


def test_every_figure_has_something_on_it(two_runs: list[Run], tmp_path: Path) -> None:
    for path in draw(two_runs, tmp_path):
        image = pixels(path)
        assert min(image.shape[:2]) >= 600
        assert 0.01 < (image != 255).any(axis=-1).mean() < 0.7


def test_the_same_runs_give_the_same_bytes(two_runs: list[Run], tmp_path: Path) -> None:
    first = draw(two_runs, tmp_path / "first")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        second = draw(two_runs, tmp_path / "second")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_drawing_leaves_no_setting_of_matplotlib_behind(
    two_runs: list[Run], tmp_path: Path
) -> None:
    before = dict(matplotlib.rcParams)
    draw(two_runs, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_no_program_or_date_is_written_into_the_image(two_runs: list[Run], tmp_path: Path) -> None:
    for path in draw(two_runs, tmp_path):
        with Image.open(path) as image:
            image.load()
            assert set(image.info) <= {"dpi"}


def test_a_strategy_has_its_colour_in_every_figure(two_runs: list[Run], tmp_path: Path) -> None:
    blue, orange = (look.colour for look in looks(two_runs))
    alone = looks(two_runs[1:])[0].colour
    assert alone == orange
    for path in draw(two_runs, tmp_path)[: len(COMMON)]:
        assert has_colour(path, orange)
        assert has_colour(path, blue)


def test_all_known_strategies_differ_in_colour(make_run: MakeRun) -> None:
    known = ("fedavg", "fedavg-s", "fedasync-s", "ssp-s", "dc-asgd-a-s", "adaptcl", "heterofl")
    names = (*known, "fedrolex", "fedbuff", "mine", "yours")
    runs = [make_run(name, strategy=name) for name in names]
    assert len({look.colour for look in looks(runs)}) == len(names)


def test_runs_of_one_strategy_share_its_colour_and_differ_in_dashes(make_run: MakeRun) -> None:
    first, second = looks([make_run("a", seed=1), make_run("b", seed=2)])
    assert first.colour == second.colour
    assert first.dashes != second.dashes


def test_a_run_that_never_prunes_has_no_figure_of_its_own(
    make_run: MakeRun, tmp_path: Path
) -> None:
    assert [path.name for path in draw([make_run("a")], tmp_path / "figures")] == COMMON


def test_file_names_are_plain_and_distinct(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("a", strategy="adaptcl", adapts=True)
    runs = [replace(run, label="My run: γ/2"), replace(run, label="my run 2")]
    names = [path.name for path in draw(runs, tmp_path / "figures")[len(COMMON) :]]
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
        replace(third, workers=()),
        *rest,
    )
    unmeasured = tuple(replace(r, accuracy=None, workers=()) for r in run.rounds)
    runs = [replace(run, rounds=holey), replace(run, label="unmeasured", rounds=unmeasured)]
    assert all(path.exists() for path in draw(runs, tmp_path / "one"))
    assert len(draw(runs[1:], tmp_path / "two")) == len(COMMON)


def test_runs_without_a_finished_round_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    empty = replace(make_run("a"), rounds=())
    with pytest.raises(RunFolderError, match="nothing to draw"):
        draw([empty], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_of_very_many_workers_bands_are_drawn_and_not_a_line_for_each(make_run: MakeRun) -> None:
    run = make_run("many", strategy="adaptcl", workers=400, rounds=6, adapts=True)
    axes = Figure().subplots(1, 3)
    panels.update_times(axes[0], run)
    panels.retention(axes[1], run, looks([run])[0])
    panels.update_time_change(axes[2], run, looks([run])[0])
    assert [each.get_label() for each in axes[0].collections] == ["all workers", "nine tenths"]
    assert [line.get_label() for line in axes[0].lines] == ["median"]
    all_of_them = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    times = [worker.update_time_s for record in run.rounds for worker in record.workers]
    assert max(all_of_them) == pytest.approx(max(times))
    assert min(all_of_them) == pytest.approx(min(times))
    assert len(axes[1].patches) == 0
    assert len(axes[1].collections) == 1
    assert len(axes[2].lines) == 2
