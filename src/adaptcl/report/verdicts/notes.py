"""The notes below a comparison: what a reader must know before believing its numbers."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from adaptcl.config.effects import has_effect
from adaptcl.quantities import duration, short_duration
from adaptcl.records import TESTS, end_s
from adaptcl.report.comparisons.baselines import strongest
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.labels import distinct_labels, job_differences
from adaptcl.report.comparisons.learning_curve import tests_of
from adaptcl.report.comparisons.participation import notes_on_participation, notes_on_workers_gone
from adaptcl.report.saved_run import Run
from adaptcl.training.objectives.evaluation import USUAL_COUNT
from adaptcl.training.objectives.metrics import HIGHER, Measure

_NAMED_ROWS = 3  # up to this many rows with few tests are named; more are counted


def notes_on(comparison: Comparison) -> list[str]:
    notes = []
    runs, rows = comparison.runs, comparison.rows
    if names := job_differences(runs):
        notes.append(
            f"The runs differ in {', '.join(names)}: each is compared with the "
            f"{comparison.reference} of its own."
            if len(comparison.baselines) > 1
            else f"The runs differ in {', '.join(names)}: compare times with care."
        )
    notes += _notes_on_baselines(comparison)
    notes += notes_on_participation(comparison)
    notes += notes_on_workers_gone(comparison)
    notes += _notes_on_statistics(comparison)
    notes += _notes_on_time(comparison)
    notes += _notes_on_early_times(rows)
    notes += _notes_on_few_tests(rows)
    notes += _notes_on_length(runs)
    if comparison.over_seeds:
        notes += _notes_over_seeds(runs, rows, comparison.measure)
    return notes


def _notes_on_few_tests(rows: Sequence[ComparisonRow]) -> list[str]:
    """Which rows have so few tests that their means reach back to the beginning."""
    few = {
        row.group.label: counts
        for row in rows
        if (counts := [n for run in row.group.runs if 0 < (n := _tests(run)) < 2 * TESTS])
    }
    if not few:
        return []
    counts = [count for each in few.values() for count in each]
    span = " to ".join(str(each) for each in sorted({min(counts), max(counts)}))
    who = f"{len(few)} rows" if len(few) > _NAMED_ROWS else " and ".join(few)
    is_one = len(few) == 1
    if len(rows) == 1:
        is_one = len(rows[0].group.runs) == 1
        who = "The run" if is_one else "The runs"
    number = f"{span} {'test' if span == '1' else 'tests'}"
    verb, means = ("has", "its mean") if is_one else ("have", "their means")
    return [
        f"{who} {verb} only {number}, so {means} of {TESTS} reach{'es' * is_one} back to when "
        f"little was learned{_more_tests(few, rows)}."
    ]


def _notes_on_early_times(rows: Sequence[ComparisonRow]) -> list[str]:
    """Which rows had tests enough, but few of them by the time of comparison."""
    early = [
        f"{row.group.label} {row.early_tests}"
        for row in rows
        if row.early_tests is not None and min(map(_tests, row.group.runs)) >= 2 * TESTS
    ]
    if not early:
        return []
    return [
        f"By equal time some rows had few tests: {', '.join(early)}. Their means of {TESTS} reach "
        "back to when little was learned, and on to later tests."
    ]


def _more_tests(few: Container[str], rows: Sequence[ComparisonRow]) -> str:
    """With which setting there would be tests enough; empty if rounds are not what is short."""
    runs = [run for row in rows if row.group.label in few for run in row.group.runs]
    if any(run.summary is None or run.summary.stopped_by for run in runs):
        return ""
    needed = max(
        math.ceil(2 * TESTS * int(run.config.get("rounds", 1)) / max(1, _tests(run)))
        for run in runs
    )
    return f"; --rounds {needed} gives {2 * TESTS} tests"


def _tests(run: Run) -> int:
    return len(tests_of(run.rounds))


def _notes_on_length(runs: Sequence[Run]) -> list[str]:
    notes = []
    limits = [run.config.get("max_virtual_time") or 0.0 for run in runs]
    if all(0 < end_s(run.rounds) < limit for run, limit in zip(runs, limits, strict=True)):
        named = " or ".join(map(short_duration, sorted(set(limits))))
        notes += [f"All runs ended before max_virtual_time, {named}."] if runs else []
    return notes


def _notes_on_baselines(comparison: Comparison) -> list[str]:
    """Which of several rows of its strategy is the baseline, if it is the strongest."""
    notes = []
    for part in comparison.by_baseline():
        (baseline,) = part.baselines
        strategy = baseline.group.first.strategy
        alike = [row.group for row in part.rows if row.group.first.strategy == strategy]
        if len(alike) > 1 and strongest(alike) is baseline.group:
            notes.append(
                f"The baseline is {baseline.group.label}: of {len(alike)} rows of {strategy} it "
                "ends best."
            )
    return notes


def _notes_on_statistics(comparison: Comparison) -> list[str]:
    """Whether only some rows are tested with statistics of batch norms that were measured anew."""
    rows = [row.group for row in comparison.rows]
    fresh = [group.label for group in rows if _has_fresh_statistics(group.first)]
    if not 0 < len(fresh) < len(rows):
        return []
    return [
        f"If the model has batch norm: {', '.join(fresh)} measured its statistics anew for each "
        "test, and the other rows merged those of their workers. In short runs that may decide. "
        f"Give all of them --fresh-statistics {USUAL_COUNT}, or --no-static-batch-norm."
    ]


def _has_fresh_statistics(run: Run) -> bool:
    asked = ("fresh_statistics", "static_batch_norm")
    return any(run.config.get(name) and has_effect(name, run.config) for name in asked)


def _notes_on_time(comparison: Comparison) -> list[str]:
    """Which rows have no value at equal time, or an earlier one, and why."""
    lacking, held = [], []
    for row in comparison.rows:
        for run, outcome in zip(row.group.runs, row.outcomes, strict=True):
            if row.at_time_s is not None and outcome.value_at_time is None:
                lacking.append(f"{row.group.label} {_tested_when(run)}")
                break
        if flat_s := max(each.flat_s for each in row.outcomes):
            held.append(f"{row.group.label} ({duration(flat_s)} before)")
    notes = [f"No value at equal time: {', '.join(lacking)}."] if lacking else []
    if held:
        notes.append(
            f"At equal time a mean of earlier tests stands in for {', '.join(held)}; it shows a "
            "run that still learned worse than it was."
        )
    return notes


def _tested_when(run: Run) -> str:
    tests = tests_of(run.rounds)
    if not tests:
        return "has no test"
    return f"has tests from {duration(tests[0].time_s)} to {duration(end_s(run.rounds))}"


def _notes_over_seeds(
    runs: Sequence[Run], rows: Sequence[ComparisonRow], measure: Measure
) -> list[str]:
    notes = []
    if any(len(row.group.runs) > 1 for row in rows):
        notes.append("Over seeds: mean ± standard deviation.")
    if are_paired(rows):
        gains = "Points above" if measure.in_percent else f"{measure.label} {ahead(measure)}"
        notes.append(
            f"{gains} and speed-ups: the mean over equal seeds and its 95 % interval; one that "
            f"holds 0{' points' * measure.in_percent}, or 1×, may be luck."
        )
    if repeated := [row.group.label for row in rows if row.group.repeats_a_seed]:
        notes.append(f"Several runs of one seed count as several: {', '.join(repeated)}.")
    if unfinished := [run.label for run in distinct_labels(runs) if run.summary is None]:
        notes.append(f"Unfinished, and in no mean: {', '.join(unfinished)}.")
    return notes


def are_paired(rows: Sequence[ComparisonRow]) -> bool:
    """Whether any row shares several seeds with the baseline."""
    return any(len(row.gains) > 1 for row in rows if not row.is_baseline)


def ahead(measure: Measure) -> str:
    return "above" if measure.better == HIGHER else "below"
