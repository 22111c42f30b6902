from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.notes import notes_on

MakeRun = Callable[..., Run]


def notes(*runs: Run, **asked: Any) -> list[str]:
    return notes_on(compare(runs, **asked))


def test_the_strongest_of_several_baselines_is_named(make_run: MakeRun) -> None:
    runs = [
        make_run(
            str(rate), strategy="fedavg", final_accuracy=rate, settings={"learning_rate": rate}
        )
        for rate in (0.2, 0.8)
    ]
    said = "The baseline is fedavg (learning_rate=0.8): of 2 rows of fedavg it ends best."
    assert said in notes(*runs)
    asked = notes(*runs, baseline="fedavg (learning_rate=0.2)")
    assert not any(note.startswith("The baseline") for note in asked)


def test_rows_of_which_some_have_static_batch_norm_carry_a_note(make_run: MakeRun) -> None:
    merged = make_run("a", strategy="fedavg", settings={"fresh_statistics": 0})
    static, switched_off, fresh = (
        make_run(name, strategy=strategy, settings=settings)
        for name, strategy, settings in (
            ("b", "heterofl", {"fresh_statistics": 0, "static_batch_norm": True}),
            ("c", "heterofl", {"fresh_statistics": 0, "static_batch_norm": False}),
            ("d", "fedavg", {"fresh_statistics": 2000}),
        )
    )

    def said(*runs: Run) -> str:
        return "".join(note for note in notes(*runs) if "batch norm" in note)

    assert said(merged, static).startswith("If the model has batch norm: heterofl")
    assert said(merged, static).endswith("--fresh-statistics 2000, or --no-static-batch-norm.")
    assert said(merged, switched_off) == said(static, fresh) == ""


def test_a_mean_over_most_of_a_short_run_is_said_to_be_one(make_run: MakeRun) -> None:
    runs = [make_run("a", rounds=12), make_run("b", strategy="fedavg", rounds=7)]
    assert notes(*runs)[-1] == (
        "fedavg (rounds=7) has only 7 tests, so its mean of 5 reaches back to when little was "
        "learned; --rounds 10 gives 10 tests."
    )
    assert notes(*runs[1:])[-1].startswith(
        "The run has only 7 tests, so its mean of 5 reaches back"
    )
    shorter = make_run("c", strategy="adaptcl", rounds=6, settings={"rounds": 12})
    assert notes(*runs, shorter)[-1] == (
        "fedavg (rounds=7) and adaptcl (rounds=12) have only 6 to 7 tests, so their means of 5 "
        "reach back to when little was learned; --rounds 20 gives 10 tests."
    )
    many = [make_run(name, strategy=name, rounds=8) for name in "defg"]
    assert notes(*many)[-1].startswith("4 rows have only 8 tests, so their means of 5 reach")


def test_where_more_rounds_would_not_help_a_note_asks_for_none(make_run: MakeRun) -> None:
    run = make_run("a", rounds=7)
    assert run.summary is not None
    ended = replace(run, summary=replace(run.summary, stopped_by="target_accuracy"))
    for each in (ended, make_run("b", rounds=7, finished=False)):
        assert notes(each)[-1] == (
            "The run has only 7 tests, so its mean of 5 reaches back to when little was learned."
        )


def test_a_time_past_the_last_mean_of_a_run_is_said_to_be_one(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="ssp-s", rounds=10, round_s=98.0),
    ]
    said = (
        "At equal time a mean of earlier tests stands in for fedavg (3.0 min before), ssp-s (3.3 "
        "min before); it shows a run that still learned worse than it was."
    )
    assert said in notes(*runs, at_time_s=980.0)
    assert not any("At equal time" in note for note in notes(*runs))


def test_why_a_run_has_no_value_at_equal_time_stands_below_the_table(make_run: MakeRun) -> None:
    untested = make_run("c", strategy="heterofl", rounds=10)
    rounds = tuple(replace(each, accuracy=None) for each in untested.rounds)
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, round_s=5.0),
        replace(untested, rounds=rounds),
    ]
    found = notes(*runs, at_time_s=600.0)
    assert (
        "No value at equal time: adaptcl has tests from 5.0 s to 50.0 s, heterofl has no test."
        in (found)
    )
    assert not any("only" in note for note in found), "no run has few tests"


def test_a_limit_of_time_that_no_run_reached_is_said_to_be_one(make_run: MakeRun) -> None:
    runs = [make_run(name, rounds=12, round_s=10.0) for name in ("a", "b")]
    limited = [replace(run, config={**run.config, "max_virtual_time": 1e4}) for run in runs]
    said = "All runs ended before max_virtual_time, 2.8 h."
    assert notes(*limited)[-1] == said
    assert notes(make_run("c", rounds=12, round_s=1e3), *limited)[-1] != said
    reached = replace(limited[0], config={**limited[0].config, "max_virtual_time": 120.0})
    assert not any(line.startswith("All runs") for line in notes(reached, limited[1]))


def test_a_note_names_a_seed_that_counts_twice(make_run: MakeRun) -> None:
    runs = [make_run("a", seed=1), make_run("b", seed=1)]
    assert "Several runs of one seed count as several: fedavg-s." in notes(*runs, over_seeds=True)


def test_a_row_that_had_few_tests_by_the_time_of_comparison_is_named(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{sigma}", strategy=name, rounds=10, round_s=s, settings={"sigma": sigma})
        for sigma, base_s in ((2.0, 60.0), (5.0, 200.0))
        for name, s in (("fedavg", base_s), ("adaptcl", 50.0))
    ]
    assert notes(*runs)[1] == (
        "By equal time some rows had few tests: fedavg (sigma=5) 2. Their means of 5 reach back to "
        "when little was learned, and on to later tests."
    )
    assert not any("few tests" in note for note in notes(*runs[:2]))
