"""How unequal workers are: the paper's heterogeneity H, and bandwidths for a given σ (appendix B).

Sizes and bandwidths are in MiB and MiB/s, which is what the paper means by MB.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

MIB = 2**20


def heterogeneity(update_times: Sequence[float]) -> float:
    """H = 1 − mean of φ_min / φ_w over all workers but the fastest; 0 if all are equal."""
    times = sorted(t for t in update_times if math.isfinite(t) and t > 0)
    if len(times) < 2:
        return 0.0
    return 1 - sum(times[0] / t for t in times[1:]) / (len(times) - 1)


def heterogeneity_of_present(
    update_times: Sequence[float], asked: Iterable[int], away: Container[int]
) -> float | None:
    """H of the workers asked who are not away; None while one of them has no update time yet (0).

    Without a barrier the first rounds hold only the fastest workers, whose H would be too small.
    """
    times = [update_times[worker] for worker in asked if worker not in away]
    return heterogeneity(times) if all(time > 0 for time in times) else None


def update_times(fastest: float, sigma: float, workers: int) -> list[float]:
    """Update times spread evenly, from σ × `fastest` for worker 0 to `fastest` for the last."""
    if workers == 1:
        return [fastest]
    step = (sigma - 1) / (workers - 1)
    return [fastest * (1 + step * (workers - 1 - w)) for w in range(workers)]


def bandwidths(
    size: float, bandwidth_max: float, train_time: float, sigma: float, workers: int
) -> list[float]:
    """Bandwidths that give the times of `update_times` for a model of `size` that trains equally
    fast everywhere. The last worker is the fastest and gets `bandwidth_max`."""
    fastest = 2 * size / bandwidth_max + train_time
    return [2 * size / (time - train_time) for time in update_times(fastest, sigma, workers)]
