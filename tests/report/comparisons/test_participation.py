"""A comparison says where runs had different workers; otherwise it would compare other data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.comparisons.participation import who_hardly_took_part
from adaptcl.report.saved_run import Run
from adaptcl.report.table import comparison_table
from adaptcl.report.verdicts.notes import notes_on
from adaptcl.training.task import WorkerTest

MakeRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("rounds", "updates", "sentences"),
    [
        (10, (10, 10, 10), []),
        (10, (10, 6, 10), []),
        (10, (), []),
        (60, (60, 57, 3), ["worker 2 took part in 3 of 60 rounds"]),
        (
            8,
            (8, 0, 8, 3, 8),
            ["worker 1 took part in 0 of 8 rounds and worker 3 took part in 3 of 8 rounds"],
        ),
        (60, (6, 2, 7, 6), ["worker 1 took part in 2 rounds, where 6 are usual"]),
    ],
)
def test_who_hardly_took_part_is_named(
    make_run: MakeRun, rounds: int, updates: tuple[int, ...], sentences: list[str]
) -> None:
    summary = make_run("a", rounds=rounds).summary
    assert summary is not None
    assert who_hardly_took_part(replace(summary, updates=updates)) == sentences


def with_updates(run: Run, *updates: int) -> Run:
    assert run.summary is not None
    return replace(run, summary=replace(run.summary, updates=updates))


def about_data(*runs: Run) -> list[str]:
    return [note for note in notes_on(compare(runs)) if "other data" in note]


def test_a_run_without_a_worker_that_another_had_learned_from_other_data(make_run: MakeRun) -> None:
    fedavg = make_run("a", strategy="fedavg", rounds=60, workers=3)
    adaptcl = make_run("b", strategy="adaptcl", rounds=60, workers=3)
    full = with_updates(adaptcl, 60, 60, 60)
    assert about_data(with_updates(fedavg, 60, 60, 0), full) == [
        "fedavg had no update of worker 2, so it learned from other data than adaptcl."
    ]
    assert about_data(full, with_updates(fedavg, 60, 60, 3)) == [
        "fedavg had only 3 updates of worker 2, so it learned from other data than adaptcl."
    ]
    assert about_data(with_updates(fedavg, 60, 60, 60), full) == []
    assert about_data(with_updates(fedavg, 60, 0, 60), with_updates(adaptcl, 60, 1, 60)) == []


def test_workers_that_chance_did_not_draw_need_no_note(make_run: MakeRun) -> None:
    drawn = make_run("a", strategy="fedavg", workers=3, settings={"participants": 1})
    assert about_data(with_updates(drawn, 2, 2, 0), make_run("b", workers=3)) == []


def with_tests(record: RoundRecord, *values: float) -> RoundRecord:
    """The round with the accuracy of each worker that was there."""
    there = zip(record.workers, values, strict=False)
    tests = tuple(replace(w, test=WorkerTest(9, 1.0, {"accuracy": v})) for w, v in there)
    return replace(record, workers=tests).tested(1.0, "accuracy", {"accuracy": values[0]})


def test_values_by_worker_are_those_of_workers_that_were_there_at_the_end(
    make_run: MakeRun,
) -> None:
    run = make_run("a", strategy="fedavg", rounds=2, workers=3)
    assert run.summary is not None
    values = [{"accuracy": each} for each in (0.7, 0.8)]
    left = replace(
        run,
        rounds=(with_tests(run.rounds[0], 0.5, 0.5, 0.1), with_tests(run.rounds[1], 0.7, 0.8)),
        summary=replace(run.summary, worker_metrics=(*values, {})),
    )
    table = comparison_table(compare([left]))
    assert table.rows[0][table.headings.index("accuracy by worker")] == "60.0 % to 65.0 %"
    assert (
        "accuracy by worker leaves out worker 2 of fedavg, which was not there at the end."
        in table.notes
    )
