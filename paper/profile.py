"""The time of a training step by retention, measured on one device (the paper's Fig. sensitivity).

Sub-models are cut equally in all layers, by index, to the widths that AdaptCL prunes to. A
worker's trainer trains them. Times are medians over several series of steps; on a CPU they are the
processor time of one thread, which other programs on the machine do not change.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from adaptcl import models
from adaptcl.data import Samples
from adaptcl.pruning import ServerView, prune, server_order
from adaptcl.strategies.adaptcl import AdaptCLSettings
from adaptcl.training import Recipe
from adaptcl.training.devices import trainers
from adaptcl.units import Kept, UnitMap, flops, retention, trace
from adaptcl.units.cut import cut
from benchmarks.subjects import made_up
from benchmarks.timing import one_core
from paper.result import FORMAT, Provenance, provenance

RETENTIONS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.1)
SHAPE, CLASSES = (3, 32, 32), 10
_WIDTHS = AdaptCLSettings().width_multiple


@dataclass(frozen=True)
class Profile:
    """Seconds a step, by retention."""

    model: str
    batch_size: int
    provenance: Provenance
    retention: tuple[float, ...]
    flops: tuple[float, ...]
    """As a fraction of the whole model's FLOPs."""
    seconds: tuple[float, ...]

    @property
    def flops_share(self) -> float:
        """The share of the time that falls with the FLOPs, within 0 and 1.

        It is the slope of the line through the whole model's point that fits the others best.
        """
        work = [1 - each for each in self.flops]
        saved = [1 - each / self.seconds[0] for each in self.seconds]
        square = sum(w * w for w in work)
        slope = sum(w * s for w, s in zip(work, saved, strict=True)) / square if square else 0.0
        return min(1.0, max(0.0, slope))

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": "profile", **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Profile:
        return cls(
            values["model"],
            values["batch_size"],
            Provenance(**values["provenance"]),
            tuple(values["retention"]),
            tuple(values["flops"]),
            tuple(values["seconds"]),
        )


def measure_profile(
    model: str,
    device: str,
    precision: str,
    *,
    batch_size: int = 64,
    steps: int = 0,
    seconds: float = 2.0,
) -> Profile:
    """Measure a model on random images: the time of a step does not depend on them.

    Each size is measured for about `seconds`, and at least three times, in series of `steps`; 0
    chooses a number that suits the device.
    """
    where = torch.device(device)
    steps = steps or (64 if where.type == "cuda" else 2)
    built = models.build(model, SHAPE, CLASSES, seed=1).to(where)
    samples = made_up(SHAPE, batch_size * steps, seed=1).to(where)
    units = trace(built, samples.batch(torch.arange(2, device=where))[0], models.find(model).fixed)
    order = server_order("index")
    assert order is not None
    importance = order.importance(ServerView(units, built.state_dict(), 0, 0, 1))
    whole = flops(units, units.everything())
    kept = [
        prune(units, units.everything(), importance, 1 - each, width_multiple=_WIDTHS)
        for each in RETENTIONS
    ]
    return Profile(
        model,
        batch_size,
        provenance(device, precision, data_sha256=""),
        tuple(round(retention(units, each), 5) for each in kept),
        tuple(round(flops(units, each) / whole, 5) for each in kept),
        tuple(
            _seconds_a_step(built, units, each, samples, precision, batch_size, seconds)
            for each in kept
        ),
    )


def _seconds_a_step(
    model: torch.nn.Module,
    units: UnitMap,
    kept: Kept,
    samples: Samples,
    precision: str,
    batch_size: int,
    seconds: float,
) -> float:
    batches = list(torch.split(torch.arange(len(samples)), batch_size))
    trains = trainers(model, units, [samples], precision)[0]
    trains.load(kept, cut(model.state_dict(), units, kept))
    recipe = Recipe(batch_size=batch_size, strength=0.5)
    on_gpu = samples.labels.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    times: list[float] = []
    with one_core("cpu"):
        # The first series fills caches and, on a GPU, captures the step.
        while len(times) < 4 or sum(times[1:]) < seconds:
            began = clock()
            float(trains.run(batches, None, recipe, 1e-4).sum())
            times.append(clock() - began)
    return statistics.median(times[1:]) / len(batches)
