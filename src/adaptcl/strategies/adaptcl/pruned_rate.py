"""Algorithm 2 of the paper, pruned-rate learning, line by line as it is printed.

Before a pruning round the server decides how much each worker prunes. It knows how long each worker
took at every size that its sub-model has had, and asks: at which size would the worker be as fast
as the fastest?

    γ      retention, the share of the model's parameters that a sub-model keeps (`Point.retention`)
    φ      update time, the mean over a pruning interval (`Point.update_time`)
    φ_min  the shortest update time now, which all workers should reach (`target`)
    f̃⁻¹    γ as a function of φ, by Newton's interpolation of all points so far (`interpolate`)
    P      pruned rate, the share of its sub-model that a worker cuts away
    ρ_max  the largest P in one pruning (`max_pruned_rate`)
    ρ_min  the smallest change of γ that is worth a pruning (`min_pruned_rate`)
    γ_min  the smallest retention (`min_retention`)
    α      caution of the first pruning, when f̃⁻¹ is not known yet (`alpha`)

The algorithm assumes that measurements lie on a curve. Real ones do not, so by default `guards.py`
decides: it has other rules for lines 1, 3 and 9, and uses lines 4 to 7 from here. With the setting
`literal_algorithm_2` a run follows this file alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from adaptcl.settings import When, setting
from adaptcl.strategies.adaptcl.speed_history import Point

learned_rates = partial(setting, condition=When(unused=["pruned_rates"]))
"""A setting that has no effect where the user gives the pruned rates."""


@dataclass(frozen=True)
class RateSettings:
    """The control parameters of Algorithm 2. Without a preset PI, ρ_max, γ_min and α
    are the paper's; the default job has others."""

    pruning_interval: int = setting(10, "rounds between prunings (PI)", at_least=1)
    first_pruning: int = setting(
        0,
        "round of the first pruning, at the earliest 2; 0 prunes first after one pruning interval",
        at_least=0,
    )
    max_pruned_rate: float = learned_rates(
        0.5, "largest pruned rate of one pruning (ρ_max)", at_least=0, below=1
    )
    min_pruned_rate: float = learned_rates(
        0.02, "smallest change of retention that is worth a pruning (ρ_min)", at_least=0, below=1
    )
    min_retention: float = learned_rates(
        0.1, "smallest retention of a sub-model (γ_min)", above=0, at_most=1
    )
    alpha: float = learned_rates(
        2.0, "caution of the first pruning: larger values prune less (α)", at_least=1
    )
    literal_algorithm_2: bool = learned_rates(
        False,
        "follow Algorithm 2 exactly as printed, without guards; retention can fall below "
        "min_retention",
    )

    @property
    def first_pruning_round(self) -> int:
        """The first round in which workers may prune; in round 1 nothing is measured yet."""
        return self.first_pruning or max(2, self.pruning_interval)

    def is_pruning_round(self, round_: int) -> bool:
        since = round_ - self.first_pruning_round
        return since >= 0 and since % self.pruning_interval == 0


def pruned_rates(
    histories: Mapping[int, Sequence[Point]], settings: RateSettings
) -> dict[int, float]:
    """Algorithm 2: P of every worker, from all points of each worker, the newest last."""
    target = min((points[-1].update_time for points in histories.values()), default=0.0)  # line 1
    rates = {}
    for worker, points in histories.items():  # line 2
        rates[worker] = pruned_rate(points, target, settings)
    return rates


def pruned_rate(points: Sequence[Point], target: float, settings: RateSettings) -> float:
    """P of one worker (lines 3 to 10)."""
    now = points[-1]
    if len(points) > 1:  # line 3: the worker has been pruned
        wanted = target_retention(points, target)  # line 4
        rate = rate_to_reach(wanted, now, settings)  # lines 5 to 7
    else:  # line 8
        rate = (now.update_time - target) / (settings.alpha * now.update_time)  # line 9
    return min(rate, settings.max_pruned_rate)  # line 10


def rate_to_reach(wanted: float, now: Point, settings: RateSettings) -> float:
    """P that takes a worker from γ_now to γ_target, `wanted` (lines 5 to 7)."""
    if now.retention - max(wanted, settings.min_retention) < settings.min_pruned_rate:  # line 5
        wanted = now.retention  # line 6
    return (now.retention - wanted) / now.retention  # line 7


def target_retention(points: Sequence[Point], target: float) -> float:
    """γ_target = f̃⁻¹(φ_min), the retention at which a worker would take `target` (Eq. 2).

    No polynomial goes through two points of equal time, so the newest of them counts.
    """
    by_time = {point.update_time: point.retention for point in points}
    return interpolate(list(by_time), list(by_time.values()), target)


def interpolate(xs: Sequence[float], ys: Sequence[float], at: float) -> float:
    """The value at `at` of the polynomial through all points (x, y), in Newton's form."""
    value = 0.0
    for x, coefficient in zip(reversed(xs), reversed(divided_differences(xs, ys)), strict=True):
        value = value * (at - x) + coefficient
    return value


def divided_differences(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """The coefficients f[x0], f[x0,x1], … of Newton's form. The xs must be distinct."""
    column = list(ys)
    coefficients = [column[0]]
    for order in range(1, len(xs)):
        column = [
            (column[i + 1] - column[i]) / (xs[i + order] - xs[i]) for i in range(len(column) - 1)
        ]
        coefficients.append(column[0])
    return coefficients
