"""Memory layouts of images: channels first against channels last.

On a CPU channels-last is only ever tried here, on models known to be safe: in strided 1×1
convolutions with few channels, which pruned ResNets have, it corrupts memory (a bug in oneDNN).
Nothing in the package picks it there, however fast it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from adaptcl.bench.benchmark import Report, Request, Row
from adaptcl.bench.subjects import Subject, subject
from adaptcl.bench.timing import details, how, interleaved, one_core
from adaptcl.errors import SettingError
from adaptcl.units import submodel

_BATCH = 64
_MODELS = ("vgg16", "small")
_STEPS = {"cpu": 1, "cuda": 30}
_REPEATS = {"cpu": 5, "cuda": 10}
_LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def measure(request: Request) -> Report:
    """Time plain steps in both layouts."""
    kind = torch.device(request.device).type
    repeats = request.repeats or _REPEATS[kind]
    rows: list[Row] = []
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
                rows.append(Row(f"{label}, {layout}", each.best / first, each.best / _STEPS[kind]))
            found[label] = details(times)
    return Report(
        "Memory layouts in a plain training step, batch 64",
        "of channels first",
        tuple(rows),
        how(repeats, one_core=kind == "cpu"),
        ("On a CPU the package always keeps channels first, for safety.",),
        found,
    )


def _steps(
    one: Subject, gamma: float, memory: torch.memory_format, count: int
) -> Callable[[], object]:
    model = submodel(one.model, one.units, one.cut(gamma)).train()
    refuse_unsafe(model)
    model.to(memory_format=memory)  # type: ignore[call-overload]
    inputs, labels = one.samples.batch(torch.arange(_BATCH, device=one.samples.labels.device))
    inputs = inputs.contiguous(memory_format=memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def refuse_unsafe(model: nn.Module) -> None:
    """An error for a model in which channels-last can corrupt memory on a CPU."""
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Conv2d)
            and module.kernel_size == (1, 1)
            and max(module.stride) > 1
        ):
            raise SettingError(
                f"{name} is a strided 1×1 convolution: channels-last is not safe there on a CPU."
            )
