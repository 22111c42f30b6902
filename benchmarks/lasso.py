"""The cost of sparse training: the group lasso's share of a training step.

On a CPU the lasso's gradient is timed alone, because noise would hide the difference of two long
steps. On a GPU the lasso is part of the captured step, so the difference is what can be measured.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from adaptcl.training.group_lasso import GroupLasso
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.step import BATCH, steps
from benchmarks.subjects import LASSO, PlainLasso, Subject, copied, subject
from benchmarks.timing import details, how, interleaved, one_core

_BAR = Bar(0.03)
_MODELS = ("vgg16", "small")
_STEPS = {"cpu": 1, "cuda": 100}
_REPEATS = {"cpu": 7, "cuda": 20}
_CALLS = 10


def measure(request: Request) -> BenchmarkReport:
    """Time steps and the lasso in them, for the big and the small model."""
    kind = torch.device(request.device).type
    repeats, count = request.repeats or _REPEATS[kind], _STEPS[kind]
    rows: list[Measurement] = []
    all_times = {}
    for name in _MODELS:
        one = subject(name, BATCH * 4, request.device)
        everything = one.units.everything()
        runs: dict[str, Callable[[], object]] = {
            "with": steps(one, everything, count, request.precision, LASSO),
            "without": steps(one, everything, count, request.precision, 0.0),
            "by autograd": _by_autograd(one, request.device),
        }
        if kind == "cpu":
            runs["alone"] = _alone(one)
        with one_core(request.device):
            times = interleaved(runs, repeats, request.device)
        step, bare = times["with"].best / count, times["without"].best / count
        lasso = times["alone"].best / _CALLS if kind == "cpu" else step - bare
        autograd = times["by autograd"].best / _CALLS
        rows.append(Measurement(f"{name}, in place", lasso / step, lasso, _BAR))
        rows.append(
            Measurement(f"{name}, a plain term of the loss", autograd / (bare + autograd), autograd)
        )
        all_times[name] = details(times)
    return BenchmarkReport(
        "The group lasso in a training step, batch 64",
        "of a step",
        tuple(rows),
        how(repeats, one_core=kind == "cpu"),
        details=all_times,
    )


def _alone(one: Subject) -> Callable[[], object]:
    model = copied(one.model)
    inputs, labels = one.samples.batch(torch.arange(8))
    F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    lasso = GroupLasso(model, one.units, one.units.everything())
    return lambda: [lasso.add_gradient(LASSO) for _ in range(_CALLS)]


def _by_autograd(one: Subject, device: str) -> Callable[[], object]:
    model, lasso = copied(one.model), PlainLasso(one.units, device)

    def run() -> None:
        for _ in range(_CALLS):
            (LASSO * lasso.penalty(model)).backward()  # type: ignore[no-untyped-call]

    return run
