"""HeteroFL: sub-models of fixed widths, always the first units of a layer (Diao et al., 2020).

A worker of width p holds the first ⌈p·n⌉ of the n units of every layer, so narrow sub-models are
contained in wide ones. Each unit is averaged over those who hold it. HeteroFL has to be *told*
each worker's width before the first round, when nothing is known about the workers; AdaptCL
learns it.

Left out of the published method, because they change what a worker trains rather than which
sub-model it gets: the scaler (activations divided by p while training, which the batch norm that
follows undoes), *static* batch norm (statistics measured over everybody's data at the end; here
running statistics are averaged over those who hold the unit, variances as `bn_variance` says) and
the loss masked to the labels a worker has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adaptcl.errors import SettingError
from adaptcl.records import WorkerRecord
from adaptcl.settings import Unless, redeclared, setting
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous, SynchronousSettings
from adaptcl.units import Kept, UnitMap


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
    worker_widths: tuple[float, ...] = setting(
        (),
        "width of each worker's sub-model as a share of every layer, instead of width_levels",
        above=0,
        at_most=1,
    )


class HeteroFL(Synchronous):
    """HeteroFL: each worker trains the first units of every layer."""

    summary = "a sub-model of fixed width for each worker, always the same units"
    Settings: ClassVar[type[WidthSettings]] = WidthSettings

    def __init__(self, job: Job, settings: WidthSettings) -> None:
        super().__init__(job, settings)
        self.widths = widths(settings, job.workers)
        self.kept = windows(job.units, self.widths)

    def plan(self, worker: int) -> SubModelPlan:
        """The first units of every layer."""
        return SubModelPlan(window(self.units, self.widths[worker], first=0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        """Widths are fixed; there is nothing to learn."""
        return self.nothing_to_cut()


def widths(settings: WidthSettings, workers: int) -> Sequence[float]:
    """The width of each worker's sub-model, from the slowest worker to the fastest."""
    if settings.worker_widths:
        if len(settings.worker_widths) != workers:
            raise SettingError(
                f"worker_widths has {len(settings.worker_widths)} entries, but it must have one "
                f"for each of the {workers} workers."
            )
        return settings.worker_widths
    levels = sorted(settings.width_levels, reverse=True)
    if not levels:
        raise SettingError("width_levels is empty, but it must have at least one width.")
    # Counted from the fastest, so that with fewer workers than levels the widest is still dealt.
    return [levels[place * len(levels) // workers] for place in reversed(range(workers))]


def windows(units: UnitMap, widths: Sequence[float]) -> list[Kept]:
    """What each worker holds before the first round: also who is never drawn has its width."""
    by_width = {width: window(units, width, first=0) for width in set(widths)}
    return [by_width[width] for width in widths]


def window(units: UnitMap, width: float, first: int) -> Kept:
    """⌈width·n⌉ units of every layer of n: those from `first` on, and around the end."""
    kept = units.everything()
    for layer in units.layers:
        n = len(layer.units)
        # 0.07 · 100 is a little more than 7 in floating point, and must not become 8 units.
        count = max(1, math.ceil(width * n - 1e-9))
        place = (torch.arange(n) - first) % n
        kept[layer.units.start : layer.units.stop] = place < count
    return kept
