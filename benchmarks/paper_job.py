"""The paper's CIFAR-10 job from beginning to end: VGG16, ten workers, 150 rounds.

`--data-dir` names the real images. Without it, random images of the same shape and number take the
same time but teach nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch

import adaptcl
from adaptcl import data, models
from adaptcl.config.files import preset
from adaptcl.data import Samples
from adaptcl.units import flops, trace
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.machine import multiplication_speed, step_flops
from benchmarks.subjects import SHAPES, made_up

_PRESET = "paper-cifar10-iid"
_ROUNDS = 150
_BARS = {"fedavg-s": 240.0, "adaptcl": 180.0}
"""Seconds on one H200 for all rounds."""
_NAMES = {"fedavg-s": "FedAVG-S", "adaptcl": "AdaptCL"}


def measure(request: Request) -> BenchmarkReport:
    """Run the job with both strategies."""
    rounds = request.rounds or _ROUNDS
    repeats = request.repeats or 1
    train, test = _data(request.data_dir)
    settings = preset(_PRESET)
    model = models.build("vgg16", SHAPES["vgg16"], 10, seed=1)
    units = trace(model, torch.zeros(2, *SHAPES["vgg16"]), ())
    samples = len(train) * settings["epochs"] * rounds
    work = step_flops(flops(units, units.everything()), 1) * samples
    fastest = multiplication_speed(request.device, request.precision)
    on_a_gpu = request.device.startswith("cuda") and rounds == _ROUNDS
    rows: list[Measurement] = []
    found = {}
    for strategy, name in _NAMES.items():
        results = [
            adaptcl.run(
                model,
                train,
                test,
                preset=_PRESET,
                strategy=strategy,
                rounds=rounds,
                device=request.device,
                precision=request.precision,
            )
            for _ in range(repeats)
        ]
        seconds = [each.summary.wall_time_s for each in results]
        last = results[-1].summary
        trained = 1 - (last.flops_saved if strategy == "adaptcl" else 0.0)
        bar = Bar(_BARS[strategy]) if on_a_gpu else None
        label = f"{name}, accuracy {last.accuracy:.1%}"
        rows.append(Measurement(label, min(seconds), min(seconds), bar, trained * work / fastest))
        found[name] = {"seconds": seconds, "summary": last.to_json()}
    return BenchmarkReport(
        f"The paper's CIFAR-10 job, {rounds} rounds",
        "seconds",
        tuple(rows),
        f"shortest of {repeats}, evaluation every {settings['evaluate_every']} rounds included",
        (
            f"Limit: {work / 1e15:.3g} PFLOP of convolutions (AdaptCL: with the sub-models it "
            f"ends with) at {fastest / 1e12:,.3g} TFLOP/s, the faster of a large matrix product "
            "and a large convolution here.",
        ),
        found,
    )


def _data(data_dir: str) -> tuple[Samples, Samples]:
    if not data_dir:
        shape = SHAPES["vgg16"]
        return made_up(shape, 50_000, seed=0), made_up(shape, 10_000, seed=1)
    loaded = data.load("cifar10", Path(data_dir))
    return loaded.train, loaded.test
