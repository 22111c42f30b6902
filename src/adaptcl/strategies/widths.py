"""Sub-models of a width, which keep the same share of every layer; and widths found from times.

HeteroFL, FedRolex and FLuID give them out. They differ in which units of a layer a sub-model keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adaptcl.records import WorkerRecord
from adaptcl.settings import When, redeclared, setting
from adaptcl.storage import Remembered
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SynchronousSettings
from adaptcl.units import Kept, UnitMap, retention

_NARROWEST = 1 / 16
"""HeteroFL's narrowest level. Matched widths stop there, where hardly anything is left to save."""
_MOST_OVERHEAD = 0.95  # with an overhead of 1 no width would change anything
_LEAST_CHANGE = 0.05
"""A width stays if the new one differs by less, so that sub-models do not change for nothing."""


@dataclass(frozen=True)
class WidthSettings(SynchronousSettings):
    """What the strategies with such sub-models have in common."""

    aggregation: str = redeclared(SynchronousSettings, "aggregation", "by-unit")
    static_batch_norm: bool = setting(
        True,
        "test and deliver the model with batch-norm statistics measured on training samples, as "
        "HeteroFL's authors do; false keeps the merged statistics",
        condition=When(unused=["fresh_statistics"]),
    )


def count_of(width: float, units: int) -> int:
    """How many of a layer's units a sub-model of this width holds: ⌈width·n⌉, at least one."""
    # 0.07 · 100 is a little more than 7 in floating point, and must not become 8 units.
    return max(1, math.ceil(width * units - 1e-9))


def window(units: UnitMap, width: float, first: int) -> Kept:
    """⌈width·n⌉ of the n units of every layer: those from `first` on, wrapping around the end."""
    kept = units.everything()
    for layer in units.layers:
        n = len(layer.units)
        place = (torch.arange(n) - first) % n
        kept[layer.units.start : layer.units.stop] = place < count_of(width, n)
    return kept


class MatchedWidths(Remembered):
    """Widths with which slow workers take as long as a faster one, from measured update times.

    Everybody begins with the whole model, which shows how long that takes (T). The first narrower
    task shows which share of the time does not shrink, the overhead o. From then on a sub-model
    with retention γ is expected to take T·(o + (1 − o)·γ).
    """

    remembered: ClassVar[tuple[str, ...]] = ("widths", "_whole", "_overhead")

    def __init__(self, job: Job) -> None:
        self.widths = [1.0] * job.workers
        self._units = job.units
        self._whole: list[float | None] = [None] * job.workers
        """By worker, the seconds that the whole model takes; None before the first update."""
        self._overhead: list[float | None] = [None] * job.workers
        """By worker, the share of that which does not shrink; None before a narrower update."""
        self._least_change = _LEAST_CHANGE + 2 * job.time_noise

    def learn(self, records: Sequence[WorkerRecord], ahead: int) -> None:
        """Let nobody take longer than the worker that `ahead` others are faster than.

        Only workers whose time is known count. Until it is, a worker trains the whole model.
        """
        for record in records:
            worker, retention, seconds = record.worker, record.retention, record.update_time_s
            whole, overhead = self._whole[worker], self._overhead[worker]
            if retention < 1 and overhead is None and whole:
                overhead = min(
                    max((seconds / whole - retention) / (1 - retention), 0.0), _MOST_OVERHEAD
                )
                self._overhead[worker] = overhead
            overhead = overhead or 0.0
            self._whole[worker] = seconds / (overhead + (1 - overhead) * retention)
        known = {worker: whole for worker, whole in enumerate(self._whole) if whole is not None}
        if not known:
            return
        target = sorted(known.values())[min(ahead, len(known) - 1)]
        for worker, whole in known.items():
            width = self._width(worker, target / whole)
            if width == 1 or abs(width - self.widths[worker]) > self._least_change * width:
                self.widths[worker] = width

    def _width(self, worker: int, share: float) -> float:
        """The width with which a worker takes this share of its time with the whole model."""
        if share >= 1:
            return 1.0
        overhead = self._overhead[worker] or 0.0
        wanted = (share - overhead) / (1 - overhead)
        narrow, wide = _NARROWEST, 1.0
        # Retention grows with the width in steps, so halving finds the widest that is small enough.
        while wide - narrow > 1e-3:
            middle = (narrow + wide) / 2
            fits = retention(self._units, window(self._units, middle, first=0)) <= wanted
            narrow, wide = (middle, wide) if fits else (narrow, middle)
        return narrow
