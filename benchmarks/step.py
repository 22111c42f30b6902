"""A training step of VGG16, whole and cut: does pruning save time, and how far is the limit?

All times are relative to the package's step on the whole model. `plain` is the usual PyTorch loop
on the same sub-model. `rounded` prunes to widths that suit the hardware. One worker cannot fill a
GPU, so there the steps of several workers side by side are timed too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from adaptcl.training import Recipe
from adaptcl.training.devices import trainers
from adaptcl.units import Kept, flops, retention, submodel
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.machine import multiplication_speed, step_flops
from benchmarks.subjects import LASSO, PlainLasso, Subject, plain_training, subject
from benchmarks.timing import details, how, interleaved, one_core

RETENTIONS = (1.0, 0.5, 0.25, 0.1)
BATCH = 64
_STEPS = {"cpu": 1, "cuda": 50}
_REPEATS = {"cpu": 5, "cuda": 10}
_WIDTHS = {"cpu": (16,), "cuda": (16, 32)}
_TOGETHER = 6
"""Workers side by side, as many as a simulation trains on a GPU."""
_BARS = {"cpu": 0.35, "cuda": 0.65}
_WHOLE = "γ = 1"
_SIDE_BY_SIDE = f" | {_TOGETHER} side by side"
_MODEL = "vgg16"


def measure(request: Request) -> BenchmarkReport:
    """Time one step of each sub-model, with the package's trainer and with a plain loop."""
    kind = torch.device(request.device).type
    count, repeats = _STEPS[kind], request.repeats or _REPEATS[kind]
    vgg = subject(_MODEL, BATCH * 4, request.device)
    cuts: dict[str, Kept] = {}
    for gamma in RETENTIONS:
        cuts[f"γ = {gamma:g}"] = vgg.cut(gamma)
        for width in _WIDTHS[kind] if gamma < 1 else ():
            cuts[f"γ = {gamma:g}, widths rounded to {width}"] = vgg.cut(gamma, width)
    runs: dict[str, Callable[[], object]] = {}
    for label, kept in cuts.items():
        runs[label] = steps(vgg, kept, count, request.precision, LASSO)
        runs[f"{label}, plain"] = _plain(vgg, kept, count, request.device)
    runs[f"{_WHOLE}, no lasso"] = steps(vgg, cuts[_WHOLE], count, request.precision, 0.0)
    with one_core(request.device):
        times = interleaved(runs, repeats, request.device)
        fastest = multiplication_speed(request.device, request.precision)
        if kind == "cuda":
            together = {
                f"{label}{_SIDE_BY_SIDE}": _together(vgg, kept, count, request.precision)
                for label, kept in cuts.items()
            }
            times |= interleaved(together, repeats, request.device)
    rows = []
    for label in times:
        kept = cuts[label.removesuffix(", plain").removesuffix(", no lasso").split(" | ")[0]]
        several = label.endswith(_SIDE_BY_SIDE)
        whole = times[_WHOLE + _SIDE_BY_SIDE if several else _WHOLE].best
        limit = step_flops(flops(vgg.units, kept), BATCH) * count / fastest
        limit *= _TOGETHER if several else 1
        gamma = retention(vgg.units, kept)
        bar = Bar(_BARS[kind]) if label.startswith("γ = 0.25") and "plain" not in label else None
        name = label if gamma > 0.99 else f"{label} ({gamma:.3f})"
        best = times[label].best
        each = best / count / (_TOGETHER if several else 1)
        rows.append(Measurement(name, best / whole, each, bar, limit / whole))
    return BenchmarkReport(
        "A training step of VGG16, batch 64, group lasso included",
        "of the whole step",
        tuple(rows),
        how(repeats, one_core=kind == "cpu"),
        (
            f"Limit: the step's multiplications at {fastest / 1e9:,.0f} GFLOP/s, the faster of "
            "a large matrix product and a large convolution here.",
        ),
        details(times),
    )


def steps(
    vgg: Subject, kept: Kept, count: int, precision: str, lasso: float
) -> Callable[[], object]:
    """The package's trainer on a sub-model, ready to train for `count` steps."""
    package = trainers(vgg.model, vgg.units, [vgg.samples], precision)[0]
    package.load(kept, _state(vgg, kept))
    recipe = Recipe(batch_size=BATCH, strength=0.9 if lasso else 0.0)
    indexes = vgg.batches(count, BATCH)
    return lambda: package.run(indexes, None, recipe, lasso)


def _together(vgg: Subject, kept: Kept, count: int, precision: str) -> Callable[[], object]:
    """The same for several workers at once, each in its thread."""
    several = trainers(vgg.model, vgg.units, [vgg.samples] * _TOGETHER, precision)
    for each in several:
        each.load(kept, _state(vgg, kept))
    recipe = Recipe(batch_size=BATCH, strength=0.9)
    indexes = vgg.batches(count, BATCH)

    def run(number: int) -> None:
        several[number].run(indexes, None, recipe, LASSO)

    def run_all() -> None:
        with ThreadPoolExecutor(_TOGETHER) as pool:
            list(pool.map(run, range(_TOGETHER)))

    return run_all


def _plain(vgg: Subject, kept: Kept, count: int, device: str) -> Callable[[], object]:
    model = submodel(vgg.model, vgg.units, kept)
    indexes = vgg.batches(count, BATCH)
    # The plain lasso fits only the whole model, so sub-models train without it.
    groups = PlainLasso(vgg.units, device) if bool(kept.all()) else None
    return lambda: plain_training(model, vgg.samples, indexes, Recipe(), groups)


def _state(vgg: Subject, kept: Kept) -> dict[str, torch.Tensor]:
    return dict(submodel(vgg.model, vgg.units, kept).state_dict())
