"""Adding updates on the server, against just copying them.

In a round the server checks each update and adds it into the sum. Both steps read every number
once; the sum, in double precision, is read and written. The limit is the speed at which the
machine copies a model, in bytes read and written per second. If pruned units are scattered, memory
still moves whole rows of the sum, because it moves nothing smaller than a cache line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from adaptcl.strategies.aggregation import Aggregation, AggregationSettings
from adaptcl.training import Update
from adaptcl.training.divergence import refuse_diverged
from adaptcl.units import Kept, State, UnitMap, cut, kept_places
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.subjects import Subject, subject
from benchmarks.timing import details, how, interleaved

_REPEATS = {"cpu": 15, "cuda": 50}
_BAR = Bar(0.5, at_least=True)
_READ, _COPIED, _SUMMED = 4, 8, 16
"""Bytes moved to read a float32, to copy one, and to read and write a double of the sum."""


def measure(request: Request) -> BenchmarkReport:
    """Time copies, additions and checks of VGG16's sub-models."""
    kind = torch.device(request.device).type
    repeats = request.repeats or _REPEATS[kind]
    vgg = subject("vgg16", 2, request.device)
    subs = _sub_models(vgg)
    state = dict(vgg.model.state_dict())
    total = Aggregation(vgg.units, state, AggregationSettings())
    runs: dict[str, Callable[[], object]] = {"copy": _copy(state)}
    read: dict[str, int] = {}
    added: dict[str, int] = {}
    for label, kept in subs.items():
        sub = cut(state, vgg.units, kept)
        read[label] = _READ * sum(tensor.numel() for tensor in sub.values())
        added[label] = read[label] + _SUMMED * _touched(vgg.units, kept)
        runs[label] = partial(total.add, sub, kept, 5000)
        runs[_checked(label)] = partial(refuse_diverged, Update(0, 1, sub, kept, 1, 1.0), vgg.units)
    runs["result"] = partial(total.result, state)
    times = interleaved(runs, repeats, request.device)
    copied = _COPIED * sum(tensor.numel() for tensor in state.values()) / times["copy"].best
    rows = [Measurement("γ = 1, copied", 1.0, times["copy"].best)]
    for label in subs:
        best, check = times[label].best, times[_checked(label)].best
        rows.append(Measurement(f"{label}, added", added[label] / best / copied, best, _BAR))
        rows.append(Measurement(_checked(label), read[label] / check / copied, check))
    return BenchmarkReport(
        "Adding a sub-model of VGG16 into the sum",
        "of the bandwidth of a copy",
        tuple(rows),
        how(repeats),
        (
            f"The machine copies at {copied / 2**30:.1f} GiB/s, reading and writing counted.",
            "Checked: names, shapes, and that all numbers are finite.",
        ),
        details(times),
    )


def _checked(label: str) -> str:
    return f"{label}, checked"


def _sub_models(vgg: Subject) -> dict[str, Kept]:
    first = vgg.units.everything()
    for layer in vgg.units.layers:
        first[layer.units.start + round(0.7 * len(layer.units)) : layer.units.stop] = False
    return {
        "γ = 1": vgg.units.everything(),
        "γ = 0.5, the first units of each layer": first,
        "γ = 0.5, units here and there": vgg.cut(0.5),
    }


def _touched(units: UnitMap, kept: Kept) -> int:
    """Elements of the sum that memory moves: whole rows, unless a range of columns suffices."""
    count = 0
    for name, places in kept_places(units, kept).items():
        lengths = [
            size if place is None or (dim > 0 and place.start is None) else len(place)
            for dim, (size, place) in enumerate(zip(units.shapes[name], places, strict=True))
        ]
        count += math.prod(lengths)
    return count


def _copy(state: State) -> Callable[[], object]:
    into = {name: torch.empty_like(tensor) for name, tensor in state.items()}

    def copy() -> None:
        for name, tensor in state.items():
            into[name].copy_(tensor)

    return copy
