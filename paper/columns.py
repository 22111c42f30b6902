"""The columns a table can have: what each says of a run, and how it is written."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from adaptcl.engines.heterogeneity import MIB
from paper.result import RunResult

_LATE = 5
"""Tests at the end of a run whose mean says more than the last one."""

Value = Callable[[RunResult, RunResult | None], float | None]
"""From a run and what it is held against."""


@dataclass(frozen=True)
class Column:
    """One quantity."""

    heading: str
    value: Value
    digits: int = 2
    signed: bool = False
    suffix: str = ""

    def write(self, number: float) -> str:
        """The number as it stands in a table."""
        sign = "+" if self.signed else ""
        return f"{number:{sign}.{self.digits}f}{self.suffix}"


def _delta(run: RunResult, baseline: RunResult | None) -> float | None:
    return None if baseline is None else 100 * (run.summary.accuracy - baseline.summary.accuracy)


def _late(run: RunResult) -> float:
    tests = [each for each in run.course.accuracy if each is not None]
    return 100 * statistics.fmean(tests[-_LATE:])


def _delta_late(run: RunResult, baseline: RunResult | None) -> float | None:
    return None if baseline is None else _late(run) - _late(baseline)


def _averaged(run: RunResult) -> float | None:
    return _last(run.course.averaged_accuracy)


def _fresh(run: RunResult) -> float | None:
    return _last(run.course.fresh_accuracy)


def _last(tests: tuple[float | None, ...]) -> float | None:
    made = [each for each in tests if each is not None]
    return 100 * made[-1] if made else None


def _delta_averaged(run: RunResult, baseline: RunResult | None) -> float | None:
    return _less(_averaged(run), None if baseline is None else _averaged(baseline))


def _delta_fresh(run: RunResult, baseline: RunResult | None) -> float | None:
    return _less(_fresh(run), None if baseline is None else _fresh(baseline))


def _less(own: float | None, other: float | None) -> float | None:
    return None if own is None or other is None else own - other


def _delta_best(run: RunResult, baseline: RunResult | None) -> float | None:
    if baseline is None:
        return None
    return 100 * (run.summary.best_accuracy - baseline.summary.best_accuracy)


def _speed_up(run: RunResult, baseline: RunResult | None) -> float | None:
    if baseline is None:
        return None
    return baseline.summary.virtual_time_s / run.summary.virtual_time_s


def _minutes_to_baseline(run: RunResult, baseline: RunResult | None) -> float | None:
    """When a test was first at least as good as the baseline's last, even if later ones fall.

    As fine as tests are frequent; None if none was.
    """
    if baseline is None:
        return None
    return next(
        (
            seconds / 60
            for accuracy, seconds in zip(
                run.course.accuracy, run.course.virtual_time_s, strict=True
            )
            if accuracy is not None and accuracy >= baseline.summary.accuracy
        ),
        None,
    )


def _compression(run: RunResult, baseline: RunResult | None) -> float | None:
    if baseline is None:
        return None
    return 100 * (1 - run.summary.bytes_received / baseline.summary.bytes_received)


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy at the end (%)", lambda run, _: 100 * run.summary.accuracy),
    "late_accuracy": Column(f"mean of the last {_LATE} tests (%)", lambda run, _: _late(run)),
    "averaged_accuracy": Column("of the mean model at the end (%)", lambda run, _: _averaged(run)),
    "fresh_accuracy": Column("with statistics measured anew (%)", lambda run, _: _fresh(run)),
    "best_accuracy": Column("best accuracy (%)", lambda run, _: 100 * run.summary.best_accuracy),
    "minutes": Column("time (min)", lambda run, _: run.summary.virtual_time_s / 60, 1),
    "best_minutes": Column(
        "time of the best (min)", lambda run, _: run.summary.best_virtual_time_s / 60, 1
    ),
    "minutes_to_baseline": Column(
        "first test as good as the baseline's last (min)", _minutes_to_baseline, 1
    ),
    "delta": Column("ΔAcc at the end (points)", _delta, signed=True),
    "delta_late": Column(f"ΔAcc, last {_LATE} tests (points)", _delta_late, signed=True),
    "delta_averaged": Column("ΔAcc of the mean models (points)", _delta_averaged, signed=True),
    "delta_fresh": Column("ΔAcc, statistics measured anew (points)", _delta_fresh, signed=True),
    "delta_best": Column("ΔAcc of the best (points)", _delta_best, signed=True),
    "speed_up": Column("speed-up", _speed_up, suffix="×"),
    "params_mib": Column(
        "mean parameters (MiB)",
        lambda run, _: _mean([each.parameters for each in run.sub_models]) * 4 / MIB,
    ),
    "params_saved": Column(
        "parameters saved (%)", lambda run, _: 100 * run.summary.params_saved, 1
    ),
    "flops_m": Column(
        "mean MFLOPs", lambda run, _: _mean([each.flops for each in run.sub_models]) / 1e6, 1
    ),
    "flops_saved": Column("FLOPs saved (%)", lambda run, _: 100 * run.summary.flops_saved, 1),
    "least_retention": Column(
        "smallest sub-model (%)", lambda run, _: 100 * min(run.summary.retention), 1
    ),
    "heterogeneity_first": Column("H at first", lambda run, _: run.summary.heterogeneity_first),
    "heterogeneity_last": Column("H at the end", lambda run, _: run.summary.heterogeneity_last),
    "compression": Column("bytes to the server saved (%)", _compression, 1),
    "similarity": Column(
        "similarity of workers 2 and 4 at the end",
        lambda run, _: next(
            (e.pair_similarity for e in reversed(run.workers) if e.pair_similarity is not None),
            None,
        ),
        3,
    ),
}
