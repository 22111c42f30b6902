"""Memory layouts of images: channels first against channels last, in the plain loop.

On a CPU channels-last is tried only where the package would choose it, because elsewhere it can
corrupt memory (see `adaptcl.training.cpu.layout`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.errors import SettingError
from adaptcl.training.cpu.layout import cpu_layout, in_layout, laid_out
from adaptcl.units import submodel
from benchmarks.benchmark import BenchmarkReport, Measurement, Request
from benchmarks.subjects import Subject, subject
from benchmarks.timing import details, how, interleaved, one_core

_BATCH = 64
_MODELS = ("vgg16", "small")
_STEPS = {"cpu": 1, "cuda": 30}
_REPEATS = {"cpu": 5, "cuda": 10}
_LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def measure(request: Request) -> BenchmarkReport:
    """Time plain steps in both layouts."""
    kind = torch.device(request.device).type
    repeats = request.repeats or _REPEATS[kind]
    rows: list[Measurement] = []
    found = {}
    for name in _MODELS:
        one = subject(name, _BATCH, request.device)
        for gamma in (1.0, 0.25):
            runs = {
                layout: _steps(one, gamma, memory, _STEPS[kind])
                for layout, memory in _LAYOUTS.items()
            }
            with one_core(request.device):
                times = interleaved(runs, repeats, request.device)
            label = f"{name}, γ = {gamma:g}"
            first = times["channels first"].best
            for layout, each in times.items():
                rows.append(
                    Measurement(f"{label}, {layout}", each.best / first, each.best / _STEPS[kind])
                )
            found[label] = details(times)
    return BenchmarkReport(
        "Memory layouts in a plain training step, batch 64",
        "of channels first",
        tuple(rows),
        how(repeats, one_core=kind == "cpu"),
        ("On a CPU the package trains with channels last where that is known to be safe.",),
        found,
    )


def _steps(
    one: Subject, gamma: float, memory: torch.memory_format, count: int
) -> Callable[[], object]:
    inputs, labels = one.samples.batch(torch.arange(_BATCH, device=one.samples.labels.device))
    if inputs.device.type == "cpu":
        refuse_unsafe(one.model, inputs[:2])
    model = in_layout(submodel(one.model, one.units, one.cut(gamma)), memory).train()
    inputs = laid_out(inputs, memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def refuse_unsafe(model: nn.Module, example: Tensor) -> None:
    """Raise an error for a model that must not train with channels last on a CPU."""
    if cpu_layout(model, example) is not torch.channels_last:
        raise SettingError(
            f"{type(model).__name__} is not known to be safe with channels last on a CPU."
        )
