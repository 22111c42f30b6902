"""The comparison for other programs: a CSV file of plain numbers.

Columns that `summary.json` also has keep their names and units: accuracies and savings are
fractions, times are seconds of the run's clock. An unknown number is an empty cell.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from adaptcl.report.comparison import ComparisonRow, comparison_rows, interval
from adaptcl.report.saved_run import Run
from adaptcl.storage import written_whole

Cell = str | float


def write_comparison(
    path: Path,
    runs: Sequence[Run],
    *,
    over_seeds: bool = False,
    target_accuracy: float | None = None,
) -> None:
    """Write one line a row of the table; over seeds also the spread of each number."""
    records = [
        _about(row) | _target(row, target_accuracy, over_seeds) | _numbers(row, over_seeds)
        for row in comparison_rows(runs, over_seeds=over_seeds, target_accuracy=target_accuracy)
    ]
    text = io.StringIO(newline="")
    columns = list(records[0]) if records else []
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    path.parent.stat()  # a mistyped folder is an error, not a new folder
    with written_whole(path) as file:
        file.write(text.getvalue().encode())


def _about(row: ComparisonRow) -> dict[str, Cell]:
    return {
        "run": row.group.label,
        "strategy": row.group.first.strategy,
        "seeds": " ".join(str(run.config.get("seed", "")) for run in row.group.runs),
        "finished": str(all(o.finished for o in row.outcomes)).lower(),
    }


def _target(row: ComparisonRow, target_accuracy: float | None, over_seeds: bool) -> dict[str, Cell]:
    """How many runs reached the target, and their mean time."""
    if target_accuracy is None:
        return {}
    times = [o.target_time_s for o in row.outcomes]
    return {
        "target_accuracy": target_accuracy,
        "target_reached": sum(time is not None for time in times),
        **_cells("target_time_s", times, over_seeds),
    }


def _numbers(row: ComparisonRow, over_seeds: bool) -> dict[str, Cell]:
    each = row.outcomes
    columns: dict[str, Sequence[float | None]] = {
        "rounds": [o.rounds for o in each],
        "accuracy": [o.accuracy for o in each],
        "best_accuracy": [o.best_accuracy for o in each],
        "best_virtual_time_s": [o.best_time_s for o in each],
        "virtual_time_s": [o.time_s for o in each],
        "speed_up": row.speed_ups,
        "params_saved": [o.params_saved for o in each],
        "flops_saved": [o.flops_saved for o in each],
        "heterogeneity_first": [o.heterogeneity_first for o in each],
        "heterogeneity_last": [o.heterogeneity_last for o in each],
        "bytes_moved": [o.bytes_moved for o in each],
        "worst_class_accuracy": [o.worst_class_accuracy for o in each],
        "least_worker_accuracy": [o.least_worker_accuracy for o in each],
        "mean_worker_accuracy": [o.mean_worker_accuracy for o in each],
    }
    cells: dict[str, Cell] = {}
    for name, values in columns.items():
        cells |= _cells(name, values, over_seeds)
    return cells | _gain(row) if over_seeds else cells


def _gain(row: ComparisonRow) -> dict[str, Cell]:
    low, high = interval(row.gains) or ("", "")
    return {
        "accuracy_gain": fmean(row.gains) if row.gains else "",
        "accuracy_gain_low": low,
        "accuracy_gain_high": high,
    }


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
