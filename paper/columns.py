"""The columns of the paper's tables: the value of each for a run, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from adaptcl.engines.heterogeneity import MIB
from adaptcl.report.wording import Quantity
from paper.result import RunResult

_LATE = 5
"""The mean of this many last tests says more than the very last one."""

Value = Callable[[RunResult, RunResult | None], float | None]
"""A function of a run and its baseline."""


@dataclass(frozen=True)
class Column:
    """One quantity of a run."""

    heading: str
    value: Value
    quantity: Quantity


def _of_run(value: Callable[[RunResult], float | None]) -> Value:
    return lambda run, _: value(run)


def _above_baseline(value: Callable[[RunResult], float | None]) -> Value:
    def difference(run: RunResult, baseline: RunResult | None) -> float | None:
        ours, theirs = value(run), None if baseline is None else value(baseline)
        return None if ours is None or theirs is None else ours - theirs

    return difference


def _accuracy(run: RunResult) -> float:
    return 100 * run.summary.main_value


def _best_accuracy(run: RunResult) -> float:
    return 100 * run.summary.best_value


def _late_accuracy(run: RunResult) -> float:
    tests = [each for each in run.course.accuracy if each is not None]
    return 100 * fmean(tests[-_LATE:])


def _averaged_accuracy(run: RunResult) -> float | None:
    return _last_test(run.course.averaged_accuracy)


def _fresh_accuracy(run: RunResult) -> float | None:
    return _last_test(run.course.fresh_accuracy)


def _last_test(tests: Sequence[float | None]) -> float | None:
    known = [each for each in tests if each is not None]
    return 100 * known[-1] if known else None


def _speed_up(run: RunResult, baseline: RunResult | None) -> float | None:
    if baseline is None:
        return None
    return baseline.summary.virtual_time_s / run.summary.virtual_time_s


def _minutes_to_baseline(run: RunResult, baseline: RunResult | None) -> float | None:
    """The time of the first test at least as good as the baseline's last, even if later ones fall.

    None if no test is.
    """
    if baseline is None:
        return None
    course = run.course
    reached = (
        seconds / 60
        for accuracy, seconds in zip(course.accuracy, course.virtual_time_s, strict=True)
        if accuracy is not None and accuracy >= baseline.summary.main_value
    )
    return next(reached, None)


def _compression(run: RunResult, baseline: RunResult | None) -> float | None:
    if baseline is None:
        return None
    return 100 * (1 - run.summary.bytes_received / baseline.summary.bytes_received)


def _mean_parameters(run: RunResult) -> float:
    """In MiB, of the sub-models at the end."""
    return _mean([each.parameters for each in run.sub_models]) * 4 / MIB


def _mean_flops(run: RunResult) -> float:
    return _mean([each.flops for each in run.sub_models]) / 1e6


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def _last_similarity(run: RunResult) -> float | None:
    known = (e.pair_similarity for e in reversed(run.workers) if e.pair_similarity is not None)
    return next(known, None)


_ONE_DIGIT, _TWO_DIGITS, _THREE_DIGITS = (Quantity("", digits=digits) for digits in (1, 2, 3))
_POINTS = Quantity("", digits=2, signed=True)

COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy at the end (%)", _of_run(_accuracy), _TWO_DIGITS),
    "late_accuracy": Column(
        f"mean of the last {_LATE} tests (%)", _of_run(_late_accuracy), _TWO_DIGITS
    ),
    "averaged_accuracy": Column(
        "of the mean model at the end (%)", _of_run(_averaged_accuracy), _TWO_DIGITS
    ),
    "fresh_accuracy": Column(
        "with statistics measured anew (%)", _of_run(_fresh_accuracy), _TWO_DIGITS
    ),
    "best_accuracy": Column("best accuracy (%)", _of_run(_best_accuracy), _TWO_DIGITS),
    "minutes": Column(
        "time (min)", _of_run(lambda run: run.summary.virtual_time_s / 60), _ONE_DIGIT
    ),
    "best_minutes": Column(
        "time of the best (min)",
        _of_run(lambda run: run.summary.best_virtual_time_s / 60),
        _ONE_DIGIT,
    ),
    "minutes_to_baseline": Column(
        "first test as good as the baseline's last (min)", _minutes_to_baseline, _ONE_DIGIT
    ),
    "delta": Column("ΔAcc at the end (points)", _above_baseline(_accuracy), _POINTS),
    "delta_late": Column(
        f"ΔAcc, last {_LATE} tests (points)", _above_baseline(_late_accuracy), _POINTS
    ),
    "delta_averaged": Column(
        "ΔAcc of the mean models (points)", _above_baseline(_averaged_accuracy), _POINTS
    ),
    "delta_fresh": Column(
        "ΔAcc, statistics measured anew (points)", _above_baseline(_fresh_accuracy), _POINTS
    ),
    "delta_best": Column("ΔAcc of the best (points)", _above_baseline(_best_accuracy), _POINTS),
    "speed_up": Column("speed-up", _speed_up, Quantity("×", digits=2)),
    "params_mib": Column("mean parameters (MiB)", _of_run(_mean_parameters), _TWO_DIGITS),
    "params_saved": Column(
        "parameters saved (%)", _of_run(lambda run: 100 * run.summary.params_saved), _ONE_DIGIT
    ),
    "flops_m": Column("mean MFLOPs", _of_run(_mean_flops), _ONE_DIGIT),
    "flops_saved": Column(
        "FLOPs saved (%)", _of_run(lambda run: 100 * run.summary.flops_saved), _ONE_DIGIT
    ),
    "least_retention": Column(
        "smallest sub-model (%)", _of_run(lambda run: 100 * min(run.summary.retention)), _ONE_DIGIT
    ),
    "heterogeneity_first": Column(
        "H at first", _of_run(lambda run: run.summary.heterogeneity_first), _TWO_DIGITS
    ),
    "heterogeneity_last": Column(
        "H at the end", _of_run(lambda run: run.summary.heterogeneity_last), _TWO_DIGITS
    ),
    "compression": Column("bytes to the server saved (%)", _compression, _ONE_DIGIT),
    "similarity": Column(
        "similarity of workers 2 and 4 at the end", _of_run(_last_similarity), _THREE_DIGITS
    ),
}
