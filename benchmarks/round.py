"""A round of ten workers: the package against plain PyTorch, one worker after the other.

The package does a real run, timed from the end of its first round to the end of its second. The
baseline is the usual loop: copy the model for each worker, train it on all cores, add it to the
mean. Both train sparsely, the baseline with the lasso as a term of its loss; rows without the
lasso show the difference that remains without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import adaptcl
from adaptcl.data import Samples
from adaptcl.events import Event, RoundFinished
from adaptcl.training import Recipe
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.subjects import PlainLasso, Subject, copied, made_up, plain_training, subject
from benchmarks.timing import Times, details

WORKERS = 10
BATCH = 64
_STEPS = {"cpu": {"vgg16": 1, "small": 20}, "cuda": {"vgg16": 50, "small": 50}}
"""Steps of each worker in a round."""
_REPEATS = {"cpu": 3, "cuda": 3}
_BAR = Bar(1.15, at_least=True)


def measure(request: Request) -> BenchmarkReport:
    """Time rounds of both sides in turn."""
    kind = torch.device(request.device).type
    repeats = request.repeats or _REPEATS[kind]
    rows: list[Measurement] = []
    found: dict[str, Any] = {}
    for name, count in _STEPS[kind].items():
        one = subject(name, BATCH, request.device)
        parts = [made_up(one.samples.shape, BATCH * count, seed) for seed in range(WORKERS)]
        parts = [part.to(request.device) for part in parts]
        for sparse in (True, False):
            label = f"{name}, {'sparse training' if sparse else 'no lasso'}"
            times = _compare(one, parts, count, sparse, repeats, request)
            plain, package = times["plain"], times["adaptcl"]
            rows.append(
                Measurement(
                    label, plain.best / package.best, package.best, _BAR if sparse else None
                )
            )
            rows.append(
                Measurement(f"{label}: processor time", min(plain.work) / min(package.work))
            )
            found[label] = details(times)
    return BenchmarkReport(
        f"A round of {WORKERS} workers",
        "times as fast as plain",
        tuple(rows),
        f"shortest of {repeats} rounds each, in turn",
        (
            "Plain: eager PyTorch, the same workers one after the other on all cores.",
            "Processor time is what the process used, whatever else the machine did meanwhile.",
        ),
        found,
    )


def _compare(
    one: Subject, parts: Sequence[Samples], count: int, sparse: bool, repeats: int, request: Request
) -> dict[str, Times]:
    times = {"plain": Times(), "adaptcl": Times()}
    plain = _plain_round(one, parts, count, sparse, request.device)
    plain()
    for _ in range(repeats):
        wall, work = time.perf_counter(), time.process_time()
        plain()
        times["plain"].wall.append(time.perf_counter() - wall)
        times["plain"].work.append(time.process_time() - work)
        wall, work = _package_round(one, parts, sparse, request)
        times["adaptcl"].wall.append(wall)
        times["adaptcl"].work.append(work)
    return times


def _package_round(
    one: Subject, parts: Sequence[Samples], sparse: bool, request: Request
) -> tuple[float, float]:
    """Wall time and processor time of a run's second round, in seconds."""
    device = request.device
    ends: list[tuple[float, float]] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundFinished):
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            ends.append((time.perf_counter(), time.process_time()))

    adaptcl.run(
        one.model,
        list(parts),
        one.samples.take(torch.arange(2)),
        train_time=1.0,  # given, so that it is not measured
        rounds=2,
        epochs=1.0,
        batch_size=BATCH,
        evaluate_every=2,
        device=device,
        precision=request.precision,
        listeners=[listen],
        **({"strategy": "fedavg-s", "strength": 0.9} if sparse else {"strategy": "fedavg"}),
    )
    return ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]


def _plain_round(
    one: Subject, parts: Sequence[Samples], count: int, sparse: bool, device: str
) -> Callable[[], dict[str, Tensor]]:
    recipe = Recipe(batch_size=BATCH)
    groups = PlainLasso(one.units, device) if sparse else None

    def run() -> dict[str, Tensor]:
        mean = {name: torch.zeros_like(t) for name, t in one.model.state_dict().items()}
        for part in parts:
            model = copied(one.model)
            order = torch.randperm(len(part)).split(BATCH)  # type: ignore[no-untyped-call]
            plain_training(model, part, order, recipe, groups)
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    mean[name] += tensor / len(parts)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return mean

    return run
