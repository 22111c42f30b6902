"""Which trainers workers get, by the device their data is on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.training.captured import CapturedModels, CapturedTrainer
from adaptcl.training.captured_memory import give_back
from adaptcl.training.layout import cpu_layout
from adaptcl.training.memory import keep_freed_memory
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.units import UnitMap

PRECISIONS = ("float32", "tf32", "bf16")

_STREAMS = 6
"""Fewer leave a GPU half idle, more leave a longer tail, in which the last and largest sub-models
have it to themselves."""
_STREAMS_OF_SHORT_TASKS = 3
_SHORT_TASK = 1e11
"""FLOPs of a task's forward passes. A GPU is done with fewer before Python has made the next task
ready, and then more threads only wait for each other's turn in Python."""


def trainers(
    model: nn.Module, units: UnitMap, parts: Sequence[Samples], precision: str
) -> list[Trainer]:
    """A trainer for each part of the data: captured steps on a GPU, the plain loop elsewhere.

    `precision` is how a GPU multiplies: in full, in TF32, or in bfloat16 with full-precision
    weights. Other devices always compute in full. PyTorch knows one such precision for the whole
    process, and memory that it keeps is the process's too: whoever lets trainers run in somebody
    else's process does it under `gpu_left_as_found`; the processor's memory is kept for good.
    """
    device = parts[0].labels.device
    if device.type != "cuda":
        layout = torch.contiguous_format
        if device.type == "cpu":
            keep_freed_memory()
            # Two samples, as batch norm cannot train on one.
            layout = cpu_layout(model, parts[0].batch(torch.arange(2) % len(parts[0]))[0])
        return [PlainTrainer(model, units, part, layout) for part in parts]
    fast = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    everything = replace(
        parts[0],
        inputs=torch.cat([part.inputs for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
    )
    models = CapturedModels(model, units, everything, half=precision == "bf16")
    made: list[Trainer] = []
    begin = 0
    for worker, part in enumerate(parts):
        made.append(CapturedTrainer(models, part, begin, worker))
        begin += len(part)
    return made


@contextmanager
def gpu_left_as_found() -> Iterator[None]:
    """Afterwards a GPU multiplies as it did before and has back the memory nobody uses."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            give_back()


def side_by_side_on_a_gpu(task_flops: float) -> int:
    """How many workers to train at the same time, by the FLOPs of a task's forward passes."""
    return _STREAMS if task_flops >= _SHORT_TASK else _STREAMS_OF_SHORT_TASKS


def trainer(model: nn.Module, units: UnitMap, samples: Samples, precision: str) -> Trainer:
    """The trainer of a worker that is alone in its process."""
    return trainers(model, units, [samples], precision)[0]
