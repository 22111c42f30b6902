"""Memory that one training step frees and the next one needs again.

The C library gives freed memory of some size back to the operating system, above all that of
threads, and gets it anew a moment later: thousands of page faults a step, a tenth of the time of
a small net. Told to keep it, a process holds what a step needs from one step to the next, which
is what it needs at its peak anyway.

It stays told when a run is over: glibc does not say what it was told before, and cannot be brought
back to the way it adapts by itself. Whoever minds that in their own process sets one of the
environment variables named below, which this never overrules.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.training.gpu.captured_buffers import give_back
from adaptcl.training.gpu.captured_trainer import CapturedModels, CapturedTrainer
from adaptcl.training.layout import cpu_layout
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.units import UnitMap

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these options of `mallopt`."""
_MAPPED = (2**30, 2**25)
"""From which size on memory is mapped by itself; older glibc refuses more than the second."""
_TRIMMED = 2**31 - 1
_OWN_WISHES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user says what the library should do."""


def keep_freed_memory() -> bool:
    """Make this process keep memory for the next step; whether it will.

    Nothing is done without glibc, or where the user has told glibc what to do.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_WISHES):
        return False
    library = ctypes.CDLL(None)
    # First this one: either option ends glibc's own way of raising the threshold, so the other
    # alone would map and unmap every larger tensor of a step.
    if not any(library.mallopt(_MMAP_THRESHOLD, size) == 1 for size in _MAPPED):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _TRIMMED) == 1)


# Which trainers workers get, by the device their data is on.

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
