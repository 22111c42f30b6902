"""The comparison for other programs: a CSV file of plain numbers.

Columns that `summary.json` also has keep their names and units: accuracies and savings are
fractions, times are seconds of the run's clock. An unknown number is an empty cell. `late_accuracy`
is the mean of the last five tests, `accuracy` the last one; the columns of another main metric have
its name instead. Each setting in which the runs differ has a column.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.comparisons.intervals import interval
from adaptcl.report.comparisons.labels import setting_differences, setting_text
from adaptcl.storage import refusing_unwritable, written_whole

Cell = str | float


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write a line for each row of the table; over seeds also the spread of each number."""
    records = comparison_records(comparison)
    text = io.StringIO(newline="")
    columns = list(records[0]) if records else []
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    with refusing_unwritable(path):
        path.parent.stat()  # a mistyped folder is an error, not a new folder
    with written_whole(path) as file:
        file.write(text.getvalue().encode())


def comparison_records(comparison: Comparison) -> list[dict[str, Cell]]:
    over_seeds, name = comparison.over_seeds, comparison.measure.name
    settings = setting_differences([row.group.first for row in comparison.rows])
    records = []
    for row in comparison.rows:
        found = _equal_time(row, comparison, over_seeds) | _numbers(row, name, over_seeds)
        # `rounds` and `target_accuracy` are also names of what was measured.
        given = {f"{n}_setting" if n in found else n: _setting(row, n) for n in settings}
        records.append(_about(row, given) | found)
    return records


def _setting(row: ComparisonRow, name: str) -> Cell:
    """A number as it is, anything else as in the label; empty if it has no effect."""
    run = row.group.first
    value, text = run.config.get(name), setting_text(run, name)
    if value is None or text is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return text


def _about(row: ComparisonRow, settings: Mapping[str, Cell]) -> dict[str, Cell]:
    return {
        "run": row.group.label,
        "strategy": row.group.first.strategy,
        **settings,
        "seeds": " ".join(str(run.config.get("seed", "")) for run in row.group.runs),
        "finished": str(all(run.summary for run in row.group.runs)).lower(),
    }


def _equal_time(row: ComparisonRow, comparison: Comparison, over_seeds: bool) -> dict[str, Cell]:
    """How the row compares with the baseline; nothing if there is none."""
    if row.baseline is None or row.at_time_s is None:
        return {}
    each, name = row.outcomes, comparison.measure.name
    cells: dict[str, Cell] = {
        "baseline": row.baseline.label,
        "at_time_s": row.at_time_s,
        **_cells(f"{name}_at_time", [o.value_at_time for o in each], over_seeds),
        **_cells(f"target_{name}", [o.target_value for o in each], over_seeds),
        "target_reached": len(row.target_times_s),
        **_cells("target_time_s", row.target_times_s, over_seeds),
        "speed_up": "" if row.speed_up is None else row.speed_up,
    }
    return cells | _intervals(row, name) if over_seeds else cells


def _intervals(row: ComparisonRow, name: str) -> dict[str, Cell]:
    """What the baseline is beaten by, seed by seed."""
    gains = [] if row.is_baseline else row.gains
    gain_low, gain_high = interval(gains) or ("", "")
    low, high = (None if row.is_baseline else row.speed_up_interval) or ("", "")
    return {
        "speed_up_low": low,
        "speed_up_high": high,
        f"{name}_gain": fmean(gains) if gains else "",
        f"{name}_gain_low": gain_low,
        f"{name}_gain_high": gain_high,
    }


_COLUMNS = (
    *("rounds", "late_{}", "{}", "best_{}", "best_virtual_time_s", "virtual_time_s"),
    *("params_saved", "flops_saved", "heterogeneity_first", "heterogeneity_last", "bytes_moved"),
    *("worst_class_accuracy", "least_worker_accuracy", "mean_worker_accuracy"),
)
"""Numbers of the summary; {} stands for the name of the main metric."""


def _numbers(row: ComparisonRow, name: str, over_seeds: bool) -> dict[str, Cell]:
    attributes = {"{}": "main_value", "best_{}": "best_value"}
    columns = {each.format(name): row.numbers(attributes.get(each, each)) for each in _COLUMNS}
    columns["rounds"] = [done or 0 for done in columns["rounds"]]
    columns[f"late_{name}"] = [outcome.late_value for outcome in row.outcomes]
    tests = [run.numbers.worker_values if run.numbers else () for run in row.group.runs]
    if any(tests):
        columns[f"lowest_worker_{name}"] = [min(each, default=None) for each in tests]
        columns[f"highest_worker_{name}"] = [max(each, default=None) for each in tests]
    cells: dict[str, Cell] = {}
    for column, values in columns.items():
        cells |= _cells(column, values, over_seeds)
    return cells


def _cells(name: str, values: Sequence[float | None], over_seeds: bool) -> dict[str, Cell]:
    """The mean of the known values; over seeds also their spread."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    # The mean of equal numbers must be that number, to the last digit.
    mean: Cell = "" if not known else known[0] if len(set(known)) == 1 else fmean(known)
    if not over_seeds:
        return {name: mean}
    return {
        name: mean,
        f"{name}_sd": stdev(known) if len(known) > 1 else "",
        f"{name}_min": min(known, default=""),
        f"{name}_max": max(known, default=""),
    }
