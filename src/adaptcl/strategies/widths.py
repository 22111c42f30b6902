"""How wide each worker's sub-model is: dealt to groups, given one by one, or matched to its speed.

A sub-model of width p holds ⌈p·n⌉ of the n units of every layer. *Matched* widths make workers
equally fast, from what an update takes. Everybody begins with the whole model, which shows how long
that takes (T). The first narrower task shows which share of the time does not shrink (f). From then
on a sub-model with retention γ is expected to take T·(f + (1 − f)·γ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptcl.errors import SettingError
from adaptcl.records import WorkerRecord
from adaptcl.settings import Unless, redeclared, setting
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SynchronousSettings
from adaptcl.units import Kept, UnitMap, retention

MATCHED = "matched"
_NARROWEST = 1 / 16
"""HeteroFL's narrowest level. Matched widths stop there, where hardly anything is left to save."""
_MOST_FIXED = 0.95  # the largest f; with f = 1 no width would change anything
_ENOUGH = 0.05
"""A width stays if the new one differs by less, so that sub-models do not change for nothing."""


@dataclass(frozen=True)
class WidthSettings(SynchronousSettings):
    """Settings of strategies whose sub-models have fixed widths."""

    aggregation: str = redeclared(SynchronousSettings, "aggregation", "by-unit")
    width_levels: tuple[float, ...] = setting(
        (1.0, 0.5, 0.25, 0.125, 0.0625),
        "widths for equal groups of workers; the widest go to the last workers, which are the "
        "fastest in a simulation",
        above=0,
        at_most=1,
        condition=Unless("worker_widths"),
    )
    worker_widths: tuple[float, ...] | str = setting(
        (),
        "width of each worker's sub-model as a share of every layer, instead of width_levels; "
        "matched makes all workers as fast as the fastest, from measured update times",
        above=0,
        at_most=1,
        choices=(MATCHED,),
    )
    static_batch_norm: bool = setting(
        True,
        "test and deliver the model with batch-norm statistics measured on training samples, as "
        "HeteroFL's authors do; false keeps the merged statistics",
        condition=Unless("fresh_statistics"),
    )


class Widths:
    """The width of each worker's sub-model."""

    def __init__(self, settings: WidthSettings, job: Job) -> None:
        self._matched = MatchedWidths(job) if settings.worker_widths == MATCHED else None
        self._dealt = [1.0] * job.workers if self._matched else deal_widths(settings, job.workers)

    def __getitem__(self, worker: int) -> float:
        return self._matched[worker] if self._matched else self._dealt[worker]

    def initial_windows(self, units: UnitMap) -> list[Kept]:
        """Each worker's sub-model before the first round; a worker that is never drawn keeps it."""
        by_width = {width: window(units, width, first=0) for width in set(self._dealt)}
        return [by_width[width] for width in self._dealt]

    def learn(self, records: Sequence[WorkerRecord]) -> None:
        """Match the widths to the times of a round, if they are to be matched."""
        if self._matched:
            self._matched.learn(records)
            self._matched.match(ahead=0)

    def snapshot(self) -> Tree:
        return self._matched.snapshot() if self._matched else None

    def restore(self, tree: Tree) -> None:
        if self._matched:
            self._matched.restore(tree)


class MatchedWidths:
    """Widths with which slow workers take as long as a faster one."""

    def __init__(self, job: Job) -> None:
        self._units = job.units
        self._widths = [1.0] * job.workers
        self._whole: list[float | None] = [None] * job.workers
        """By worker, the seconds that the whole model takes; None before the first update."""
        self._fixed: list[float | None] = [None] * job.workers
        """By worker, the share of that which does not shrink; None before a narrower update."""
        self._enough = _ENOUGH + 2 * job.time_noise

    def __getitem__(self, worker: int) -> float:
        return self._widths[worker]

    def learn(self, records: Sequence[WorkerRecord]) -> None:
        """Learn from the update times of a round."""
        for record in records:
            worker, kept, seconds = record.worker, record.retention, record.update_time_s
            whole, fixed = self._whole[worker], self._fixed[worker]
            if kept < 1 and fixed is None and whole:
                fixed = min(max((seconds / whole - kept) / (1 - kept), 0.0), _MOST_FIXED)
                self._fixed[worker] = fixed
            fixed = fixed or 0.0
            self._whole[worker] = seconds / (fixed + (1 - fixed) * kept)

    def match(self, ahead: int) -> None:
        """Let nobody take longer than the worker that `ahead` others are faster than.

        Only workers whose time is known count. Until it is, a worker trains the whole model.
        """
        known = {worker: whole for worker, whole in enumerate(self._whole) if whole is not None}
        if not known:
            return
        target = sorted(known.values())[min(ahead, len(known) - 1)]
        for worker, whole in known.items():
            width = self._width(worker, target / whole)
            if width == 1 or abs(width - self._widths[worker]) > self._enough * width:
                self._widths[worker] = width

    def snapshot(self) -> Tree:
        return {"widths": self._widths, "whole": self._whole, "fixed": self._fixed}

    def restore(self, tree: Tree) -> None:
        self._widths = list(tree["widths"])
        self._whole = list(tree["whole"])
        self._fixed = list(tree["fixed"])

    def _width(self, worker: int, share: float) -> float:
        """The width with which a worker takes this share of its time with the whole model."""
        if share >= 1:
            return 1.0
        fixed = self._fixed[worker] or 0.0
        wanted = (share - fixed) / (1 - fixed)
        narrow, wide = _NARROWEST, 1.0
        # Retention grows with the width in steps, so halving finds the widest that is small enough.
        while wide - narrow > 1e-3:
            middle = (narrow + wide) / 2
            fits = retention(self._units, window(self._units, middle, first=0)) <= wanted
            narrow, wide = (middle, wide) if fits else (narrow, middle)
        return narrow


def deal_widths(settings: WidthSettings, workers: int) -> Sequence[float]:
    """The width of each worker's sub-model, from the slowest worker to the fastest."""
    given = settings.worker_widths
    if given and not isinstance(given, str):
        if len(given) != workers:
            raise SettingError(
                f"worker_widths has {len(given)} entries, but it must have one for each of the "
                f"{workers} workers."
            )
        return given
    levels = sorted(settings.width_levels, reverse=True)
    if not levels:
        raise SettingError("width_levels is empty, but it must have at least one width.")
    # Dealt from the fastest on, so that the widest is used even with fewer workers than levels.
    return [levels[place * len(levels) // workers] for place in reversed(range(workers))]


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
