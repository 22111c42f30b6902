"""HeteroFL: sub-models of fixed widths, always the first units of a layer (Diao et al., 2020).

A worker of width p holds the first ⌈p·n⌉ of the n units of every layer, so narrow sub-models are
contained in wide ones. Each unit is averaged over the workers that hold it. HeteroFL needs each
worker's width before the first round, when nothing is known about the workers; AdaptCL learns it.

Three parts of the published method are left out, because they change how a worker trains and not
which sub-model it gets: the scaler (activations divided by p in training, which the next batch norm
undoes); *static* batch norm (statistics measured on everybody's data at the end; here running
statistics are averaged over the workers that hold the unit); and the loss masked to the labels that
a worker has.
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
    """Each worker trains the first units of every layer."""

    summary = "a sub-model of fixed width for each worker, always the same units"
    Settings: ClassVar[type[WidthSettings]] = WidthSettings

    def __init__(self, job: Job, settings: WidthSettings) -> None:
        super().__init__(job, settings)
        self.widths = deal_widths(settings, job.workers)
        self.kept = initial_windows(job.units, self.widths)

    def plan(self, worker: int) -> SubModelPlan:
        return SubModelPlan(window(self.units, self.widths[worker], first=0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        return self.warn_nothing_to_cut()


def deal_widths(settings: WidthSettings, workers: int) -> Sequence[float]:
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
    # Dealt from the fastest on, so that the widest is used even with fewer workers than levels.
    return [levels[place * len(levels) // workers] for place in reversed(range(workers))]


def initial_windows(units: UnitMap, widths: Sequence[float]) -> list[Kept]:
    """Each worker's sub-model before the first round; a worker that is never drawn keeps it."""
    by_width = {width: window(units, width, first=0) for width in set(widths)}
    return [by_width[width] for width in widths]


def window(units: UnitMap, width: float, first: int) -> Kept:
    """⌈width·n⌉ of the n units of every layer: those from `first` on, wrapping around the end."""
    kept = units.everything()
    for layer in units.layers:
        n = len(layer.units)
        # 0.07 · 100 is a little more than 7 in floating point, and must not become 8 units.
        count = max(1, math.ceil(width * n - 1e-9))
        place = (torch.arange(n) - first) % n
        kept[layer.units.start : layer.units.stop] = place < count
    return kept
