"""The bandwidth of each worker that makes an environment of a given σ (the paper's appendix B).

Sizes and bandwidths are in MiB and MiB/s, which is what the paper means by MB.
"""

from __future__ import annotations

MIB = 2**20


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
