"""The columns of the paper's tables: the value of each for a run, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from adaptcl.engines.bandwidths import MIB
from adaptcl.quantities import ABSENT
from adaptcl.records import TESTS
from adaptcl.report.comparisons.learning_curve import LearningCurve, TestResult, curve_through
from paper.result import RunResult


@dataclass(frozen=True)
class ComparedRun:
    """A run, what it is compared with, and when."""

    run: RunResult
    baseline: RunResult | None = None
    """The baseline of the same seed, if there is one."""
    equal_time_s: float = math.inf
    """The end of the shortest run in the table."""


Value = Callable[[ComparedRun], float | None]


@dataclass(frozen=True)
class Number:
    """How the numbers of a column are written."""

    digits: int
    unit: str = ""
    signed: bool = False  # whether positive numbers have a plus sign

    def write(self, values: Sequence[float | None]) -> str:
        """A mean over seeds, with `± standard deviation` if there are several."""
        known = [each for each in values if each is not None and math.isfinite(each)]
        if not known:
            return ABSENT
        mean = f"{fmean(known):{'+' if self.signed else ''}.{self.digits}f}{self.unit}"
        return mean if len(known) == 1 else f"{mean} ± {stdev(known):.{self.digits}f}"


@dataclass(frozen=True)
class Column:
    """One quantity of a run."""

    heading: str
    value: Value
    number: Number


def _of_run(value: Callable[[RunResult], float | None]) -> Value:
    return lambda compared: value(compared.run)


def _above_baseline(value: Value) -> Value:
    def difference(compared: ComparedRun) -> float | None:
        if compared.baseline is None:
            return None
        ours, theirs = value(compared), value(replace(compared, run=compared.baseline))
        return None if ours is None or theirs is None else ours - theirs

    return difference


def _accuracy(run: RunResult) -> float:
    return 100 * run.summary.main_value


def _best_accuracy(run: RunResult) -> float:
    return 100 * run.summary.best_value


def _curve(run: RunResult) -> LearningCurve:
    course = run.course
    tests = [
        TestResult(number, seconds, accuracy)
        for number, seconds, accuracy in zip(
            course.round, course.virtual_time_s, course.accuracy, strict=True
        )
        if accuracy is not None
    ]
    return curve_through(tests, run.summary.virtual_time_s)


def _late_accuracy(run: RunResult) -> float | None:
    return _percent(_curve(run).last)


def _accuracy_at_equal_time(compared: ComparedRun) -> float | None:
    return _percent(_curve(compared.run).at(compared.equal_time_s))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _averaged_accuracy(run: RunResult) -> float | None:
    return _last_test(run.course.averaged_accuracy)


def _fresh_accuracy(run: RunResult) -> float | None:
    return _last_test(run.course.fresh_accuracy)


def _last_test(tests: Sequence[float | None]) -> float | None:
    known = [each for each in tests if each is not None]
    return 100 * known[-1] if known else None


def _speed_up(compared: ComparedRun) -> float | None:
    """By the time of whole runs."""
    if compared.baseline is None:
        return None
    return compared.baseline.summary.virtual_time_s / compared.run.summary.virtual_time_s


def _minutes_to_baseline(compared: ComparedRun) -> float | None:
    """The time to the accuracy that the baseline ends with; None if it is never reached."""
    target = None if compared.baseline is None else _curve(compared.baseline).last
    reached = None if target is None else _curve(compared.run).time_to(target)
    return None if reached is None else reached / 60


def _speed_up_to_baseline(compared: ComparedRun) -> float | None:
    """By the time to the accuracy that the baseline ends with."""
    ours = _minutes_to_baseline(compared)
    if ours is None or compared.baseline is None:
        return None
    theirs = _minutes_to_baseline(replace(compared, run=compared.baseline))
    return None if theirs is None else theirs / ours


def _compression(compared: ComparedRun) -> float | None:
    if compared.baseline is None:
        return None
    received = compared.run.summary.bytes_received
    return 100 * (1 - received / compared.baseline.summary.bytes_received)


def _gigabytes(run: RunResult) -> float:
    return (run.summary.bytes_sent + run.summary.bytes_received) / 1e9


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


_ONE_DIGIT, _TWO_DIGITS, _THREE_DIGITS = map(Number, (1, 2, 3))
_POINTS = Number(2, signed=True)
_FACTOR = Number(2, "×")

COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy at the end (%)", _of_run(_accuracy), _TWO_DIGITS),
    "late_accuracy": Column(
        f"mean of the last {TESTS} tests (%)", _of_run(_late_accuracy), _TWO_DIGITS
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
        "time to the accuracy that the baseline ends with (min)", _minutes_to_baseline, _ONE_DIGIT
    ),
    "speed_up_to_baseline": Column("speed-up by that time", _speed_up_to_baseline, _FACTOR),
    "accuracy_at_equal_time": Column("at equal time (%)", _accuracy_at_equal_time, _TWO_DIGITS),
    "delta_at_equal_time": Column(
        "ΔAcc at equal time (points)", _above_baseline(_accuracy_at_equal_time), _POINTS
    ),
    "gigabytes": Column("sent and received (GB)", _of_run(_gigabytes), _ONE_DIGIT),
    "delta": Column("ΔAcc at the end (points)", _above_baseline(_of_run(_accuracy)), _POINTS),
    "delta_late": Column(
        f"ΔAcc, last {TESTS} tests (points)", _above_baseline(_of_run(_late_accuracy)), _POINTS
    ),
    "delta_averaged": Column(
        "ΔAcc of the mean models (points)", _above_baseline(_of_run(_averaged_accuracy)), _POINTS
    ),
    "delta_fresh": Column(
        "ΔAcc, statistics measured anew (points)",
        _above_baseline(_of_run(_fresh_accuracy)),
        _POINTS,
    ),
    "delta_best": Column(
        "ΔAcc of the best (points)", _above_baseline(_of_run(_best_accuracy)), _POINTS
    ),
    "speed_up": Column("speed-up", _speed_up, _FACTOR),
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
