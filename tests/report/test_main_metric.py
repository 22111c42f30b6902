"""Tables, figures, CSV files and verdicts speak of the main metric by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adaptcl.errors import SettingError
from adaptcl.events import RunStarted
from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.csv_file import comparison_records
from adaptcl.report.figures.drawing import draw
from adaptcl.report.progress import finished_line, round_line
from adaptcl.report.saved_run import Run
from adaptcl.report.table import comparison_table
from adaptcl.report.verdicts.verdict import verdict
from adaptcl.training import WorkerTest

pytestmark = pytest.mark.slow  # drawing takes a second a figure

MakeRun = Callable[..., Run]


def with_errors(run: Run, first: float, last: float) -> Run:
    """The run with an RMSE that falls evenly from one value to another."""
    steps = len(run.rounds) - 1
    values = [first + (last - first) * n / steps for n in range(steps + 1)]
    rounds = tuple(
        replace(record, accuracy=None).tested(value**2, "rmse", {"rmse": value})
        for record, value in zip(run.rounds, values, strict=True)
    )
    assert run.summary is not None
    summary = replace(
        run.summary,
        accuracy=float("nan"),
        metric="rmse",
        better="lower",
        metrics={"rmse": last},
        best_metric=last,
    )
    return replace(run, rounds=rounds, summary=summary)


@pytest.fixture
def runs(make_run: MakeRun) -> list[Run]:
    fedavg = make_run("a", strategy="fedavg", rounds=10)
    adaptcl = make_run("b", strategy="adaptcl", rounds=10, round_s=50.0)
    return [with_errors(fedavg, 9.0, 4.0), with_errors(adaptcl, 9.0, 4.0)]


def test_lower_errors_are_better_at_equal_time_and_reached_sooner(runs: list[Run]) -> None:
    comparison = compare(runs)
    table = comparison_table(comparison)
    assert "RMSE (mean of last 5 tests)" in table.headings
    assert "RMSE at 6.7 min" in table.headings
    assert "accuracy" not in table.markdown()
    fedavg, adaptcl = comparison.rows
    assert adaptcl.gains[0] > 0
    assert adaptcl.speed_up == pytest.approx(2)
    assert fedavg.numbers("best_value") == [4.0]
    assert verdict(comparison) == (
        "adaptcl was fastest to fedavg's final RMSE of 5.111 (mean of its last 5 tests): 6.7 min, "
        "2.00× as fast as fedavg (one seed); at 6.7 min 2.22 in RMSE ahead of it."
    )
    assert "RMSE 6" in verdict(compare(runs, target=6.0))


def test_files_are_named_by_the_metric(runs: list[Run], tmp_path: Path) -> None:
    record = comparison_records(compare(runs))[1]
    assert {"rmse", "best_rmse", "late_rmse", "rmse_at_time", "target_rmse"} <= record.keys()
    drawn = draw(compare(runs), tmp_path)
    assert {"rmse-over-time.png", "rmse-over-rounds.png"} <= {path.name for path in drawn}


def test_over_seeds_the_table_says_on_which_side_better_errors_are(make_run: MakeRun) -> None:
    runs = [
        with_errors(make_run(f"{strategy}{seed}", strategy=strategy, seed=seed), 9.0, last - seed)
        for strategy, last in (("fedavg", 5.0), ("adaptcl", 4.5))
        for seed in (1, 2)
    ]
    table = comparison_table(compare(runs))
    assert any(heading.startswith("RMSE below fedavg at") for heading in table.headings)
    assert any(note.startswith("RMSE below and speed-ups") for note in table.notes)


def test_runs_with_different_main_metrics_are_not_compared(
    runs: list[Run], make_run: MakeRun
) -> None:
    with pytest.raises(SettingError, match=r"different main metrics: RMSE \(.*accuracy \("):
        compare([*runs, make_run("c")])


def test_progress_names_the_metric(runs: list[Run]) -> None:
    run, summary = runs[0], runs[0].summary
    assert summary is not None
    started = RunStarted("fedavg", "net", "data", 4, 10, metric=summary.measure)
    record: RoundRecord = run.rounds[0]
    assert "RMSE 9" in round_line(started, record)
    assert "RMSE 4.000 (best 4.000 in round" in finished_line(summary)


def test_an_unfinished_run_is_known_by_its_settings(make_run: MakeRun) -> None:
    settings = {"objective": "regression"}
    begun = make_run("a", finished=False, settings=settings)
    assert (begun.measure.name, begun.measure.better) == ("rmse", "lower")
    other = make_run("b", finished=False, settings={**settings, "main_metric": "r2"})
    assert (other.measure.label, other.measure.better) == ("R²", "higher")


def test_where_workers_test_everything_shows_their_spread(runs: list[Run], tmp_path: Path) -> None:
    def tested(record: RoundRecord) -> RoundRecord:
        lucky = record.round == 10
        values = [float(2 + worker.worker + lucky) for worker in record.workers]
        tests = [WorkerTest(10, value**2, {"rmse": value}) for value in values]
        pairs = zip(record.workers, tests, strict=True)
        return replace(record, workers=tuple(replace(w, test=test) for w, test in pairs))

    run, summary = runs[0], runs[0].summary
    assert summary is not None
    summary = replace(summary, worker_metrics=({"rmse": 2.5}, {}, {}, {"rmse": 7.0}))
    by_workers = replace(run, rounds=tuple(map(tested, run.rounds)), summary=summary)
    assert "workers 2.000 to 5.000" in round_line(
        RunStarted("fedavg", "net", "data", 4, 10, metric=by_workers.measure), by_workers.rounds[0]
    )
    assert "workers 2.500 to 7.000" in finished_line(summary)
    comparison = compare([by_workers, runs[1]])
    table = comparison_table(comparison)
    place = table.headings.index("RMSE by worker")
    assert [row[place] for row in table.rows] == ["2.200 to 5.200", "–"]
    record = comparison_records(comparison)[0]
    assert (record["lowest_worker_rmse"], record["highest_worker_rmse"]) == (2.5, 7.0)
    names = {path.name for path in draw(comparison, tmp_path)}
    assert [name for name in names if name.startswith("workers-")] == ["workers-fedavg.png"]
