"""Make workers, with trainers that suit the device that holds the data, and prepare that device.

On a GPU steps are captured and replayed; elsewhere the plain loop trains. On a CPU the process is
told to keep the memory that a step frees.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.data.samples import Items, joined
from adaptcl.errors import SettingError
from adaptcl.pruning import WorkerOrder
from adaptcl.training.cpu.layout import cpu_layout
from adaptcl.training.gpu.captured_buffers import give_back
from adaptcl.training.gpu.captured_trainer import CapturedModels, CapturedTrainer
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.optimizers import OptimizerFactory, Schedule
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.training.worker import Worker
from adaptcl.units import UnitMap
from adaptcl.units.tensors import Tensors, each_tensor

PRECISIONS = ("float32", "tf32", "bf16")

_STREAMS = 6
"""Workers that train at the same time on a GPU. Fewer leave it half unused; more leave a longer
tail, in which the last and largest sub-models have it to themselves."""
_STREAMS_OF_SHORT_TASKS = 3
_SHORT_TASK = 1e11
"""FLOPs of a task's forward passes. A GPU finishes a shorter task before Python has prepared the
next one, so more threads would only wait for each other in Python."""


def find_device(setting: str, name: str) -> torch.device:
    """The device of this name; an error if this machine has none."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        there = "only 'cpu'"
        if torch.accelerator.is_available():
            there = f"'cpu' and '{torch.accelerator.current_accelerator()}'"
        raise SettingError(
            f"{setting} is {name!r}, but PyTorch has no such device on this machine; "
            f"it has {there}."
        ) from None
    return device


def make_workers(
    model: nn.Module,
    units: UnitMap,
    samples: Sequence[Samples],
    example: Tensors,
    seed: int,
    precision: str = "float32",
    *,
    first: int = 0,
    captures: bool = True,
    objective: Objective = CLASSIFICATION,
    custom_optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
    custom_orders: Mapping[str, WorkerOrder] | None = None,
    held_back: Sequence[Samples] = (),
    test_every: int = 1,
) -> list[Worker]:
    """A worker for each part of the samples, numbered from `first` on.

    `example` are inputs that the model takes. See `trainers` for the precision and for what is
    captured, and `Worker` for the rest.
    """
    draws = draws_randomness(model, example)
    made = trainers(
        model, units, samples, precision, objective, custom_optimizer, captures=captures
    )
    return [
        Worker(
            first + place,
            part,
            model,
            units,
            seed,
            trainer=trainer,
            draws_randomness=draws,
            custom_orders=custom_orders,
            objective=objective,
            schedule=schedule,
            held_back=held_back[place] if held_back else None,
            test_every=test_every,
        )
        for place, (part, trainer) in enumerate(zip(samples, made, strict=True))
    ]


def trainers(
    model: nn.Module,
    units: UnitMap,
    samples: Sequence[Samples],
    precision: str,
    objective: Objective = CLASSIFICATION,
    custom_optimizer: OptimizerFactory | None = None,
    *,
    captures: bool = True,
) -> list[Trainer]:
    """A trainer for each worker's samples: captured steps on a GPU, the plain loop elsewhere.

    Captured steps need samples of one shape, because all workers' samples lie in one place. Where
    they would not pay, `captures` is false.

    `precision` says how a GPU multiplies: in float32, in TF32, or in bfloat16 with float32
    weights. Other devices always use float32. The precision and the memory that PyTorch keeps
    belong to the whole process, so run trainers under `gpu_left_as_found`.
    """
    device = samples[0].device
    layout = torch.contiguous_format
    if device.type == "cpu":
        keep_freed_memory()
        # Two samples, because batch norm cannot train on one.
        layout = cpu_layout(model, samples[0].batch(torch.arange(2) % len(samples[0]))[0])
    elif device.type == "cuda" and captures:
        fast, half = precision != "float32", precision == "bf16"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
        if custom_optimizer is None and _fit_together(samples):
            models = CapturedModels(model, units, joined(samples), half=half, objective=objective)
            begins = accumulate(map(len, samples), initial=0)
            return [
                CapturedTrainer(models, each, begin, worker)
                for worker, (each, begin) in enumerate(zip(samples, begins, strict=False))
            ]
    return [
        PlainTrainer(model, units, each, layout, objective, custom_optimizer) for each in samples
    ]


def _fit_together(samples: Sequence[Samples]) -> bool:
    """Whether all workers' samples can lie in one place; those read when needed cannot."""
    read_when_needed = any(isinstance(each.inputs, Items) for each in samples)
    return not read_when_needed and len(set(map(_form, samples))) == 1


def _form(samples: Samples) -> tuple[object, ...]:
    """What samples must have in common to lie in one place: a `collate` pads each data set to its
    own longest sample."""
    tensors = [*each_tensor(samples.inputs), *each_tensor(samples.targets)]
    shapes = [(tuple(each.shape[1:]), each.dtype) for each in tensors]
    return (*shapes, samples.mean, samples.std)


@contextmanager
def gpu_left_as_found() -> Iterator[None]:
    """Restore the GPU's precision afterwards and free the memory that nobody uses."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            give_back()


def side_by_side_on_a_gpu(task_flops: float) -> int:
    """How many workers to train at the same time, from the FLOPs of a task's forward passes."""
    return _STREAMS if task_flops >= _SHORT_TASK else _STREAMS_OF_SHORT_TASKS


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of these options of glibc's `mallopt`
_MMAP_SIZES = (2**30, 2**25)
"""Size from which glibc maps memory separately; older versions refuse the first."""
_TRIM_SIZE = 2**31 - 1
_USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user tells glibc what to do."""


def keep_freed_memory() -> bool:
    """Make this process keep freed memory for the next step; returns whether it will.

    The C library gives larger freed blocks back to the system, above all those of threads, and
    gets them again a moment later: thousands of page faults a step, a tenth of the time of a small
    net. Keeping them costs no more than the process needs at its peak anyway.

    The setting stays when a run is over: glibc does not tell what was set before. Users who mind
    that set one of the variables in `_USER_VARIABLES`, which this function respects. Without
    glibc it does nothing.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _USER_VARIABLES):
        return False
    library = ctypes.CDLL(None)
    # This one first: either option ends glibc's automatic threshold, so the other alone would map
    # and unmap every larger tensor of a step.
    if not any(library.mallopt(_MMAP_THRESHOLD, size) == 1 for size in _MMAP_SIZES):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _TRIM_SIZE) == 1)
