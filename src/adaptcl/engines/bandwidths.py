"""What unequal workers have: bandwidths for a given σ, or links and devices by name.

Sizes and bandwidths are in MiB and MiB/s, which is what the paper means by MB (its appendix B).
`docs/environments.md` shows the named links and devices with their sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from adaptcl.errors import SettingError, hint_at_value

MIB = 2**20
_MBIT = 1e6 / 8 / MIB  # megabits a second in MiB/s


def update_times(fastest: float, sigma: float, workers: int) -> list[float]:
    """Update times spread evenly from σ × `fastest`, worker 0, to `fastest`, the last (Eq. 6)."""
    if workers == 1:
        return [fastest]
    step = (sigma - 1) / (workers - 1)
    return [fastest * (1 + step * (workers - 1 - w)) for w in range(workers)]


def bandwidths(
    size: float, bandwidth_max: float, train_time: float, sigma: float, workers: int
) -> list[float]:
    """Bandwidths that give the times of `update_times` for a model of `size` that trains equally
    fast everywhere (Eq. 7). The last worker is the fastest and gets `bandwidth_max`."""
    fastest = 2 * size / bandwidth_max + train_time
    return [2 * size / (time - train_time) for time in update_times(fastest, sigma, workers)]


@dataclass(frozen=True)
class Link:
    """The bandwidth of a worker's link in MiB/s."""

    down: float  # from the server to the worker
    up: float  # from the worker to the server


LINKS: Mapping[str, Link] = {
    # The nominal rate of gigabit Ethernet: machines of one building.
    "lan": Link(1000 * _MBIT, 1000 * _MBIT),
    # Medians of Ookla's Speedtest in the USA, fourth quarter of 2022: Verizon for fibre and Comcast
    # for cable.
    "fiber": Link(183.2 * _MBIT, 104.9 * _MBIT),
    "cable": Link(226.1 * _MBIT, 20.4 * _MBIT),
    # WebPageTest's profile of a DSL line, an old and slow one.
    "dsl": Link(1.5 * _MBIT, 0.384 * _MBIT),
    # Opensignal's means for Australia, November 2020 to January 2021.
    "5g": Link(240.9 * _MBIT, 15.5 * _MBIT),
    "4g": Link(45.3 * _MBIT, 8.2 * _MBIT),
    "3g": Link(6.0 * _MBIT, 1.3 * _MBIT),
}


def link_of(text: str) -> Link:
    """A link by name, or given as DOWN/UP in Mbit/s, such as 20/5."""
    if text in LINKS:
        return LINKS[text]
    try:
        down, up = (float(each) * _MBIT for each in text.split("/"))
    except ValueError:
        down = up = 0.0
    if not (0 < down < math.inf and 0 < up < math.inf):
        raise SettingError(
            f"links has {text!r}, but each must be one of {', '.join(LINKS)}, or DOWN/UP in "
            f"Mbit/s, such as 20/5{hint_at_value(text, LINKS)}"
        )
    return Link(down, up)


_GFLOPS = {
    "server": 655.9,  # Ampere Altra Q64-22, 64 cores
    "desktop": 229.0,  # AMD Ryzen 5 5600X
    "laptop": 104.68,  # MacBook Air M2
    "phone": 53.333,  # Orange Pi 5: four Cortex-A76 and four A55, as in phones since 2019
    "raspberry-pi-5": 30.249,
    "raspberry-pi-4": 11.889,
}
"""Measured by High-Performance Linpack on all cores, which multiplies matrices, as training does
(github.com/geerlingguy/top500-benchmark)."""

REFERENCE = "laptop"  # the device that this machine counts as, and that training times are for

DEVICES: Mapping[str, float] = {
    name: float(f"{gflops / _GFLOPS[REFERENCE]:.2g}") for name, gflops in _GFLOPS.items()
}
"""The speed of each device, as a multiple of the reference's."""
