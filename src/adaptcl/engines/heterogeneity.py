"""How unequal workers are: the paper's heterogeneity H (Eq. 4)."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence


def heterogeneity(update_times: Sequence[float]) -> float:
    """H = 1 − mean of φ_min / φ_w over all workers but the fastest; 0 if all are equal."""
    times = sorted(t for t in update_times if math.isfinite(t) and t > 0)
    if len(times) < 2:
        return 0.0
    return 1 - sum(times[0] / t for t in times[1:]) / (len(times) - 1)


def heterogeneity_of_present(
    update_times: Sequence[float], asked: Iterable[int], away: Container[int]
) -> float | None:
    """H of the present participants, or None until each has a first update time (0 = none yet).

    Without a barrier the first rounds hold only the fastest workers, whose H would be too small.
    """
    times = [update_times[worker] for worker in asked if worker not in away]
    return heterogeneity(times) if all(time > 0 for time in times) else None
