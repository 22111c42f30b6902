"""The machine of a benchmark: what it is, and its best measured speed of multiplication."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import conv2d

from adaptcl.report.wording import number_of
from benchmarks.timing import interleaved

_SIDE = {"cpu": 2048, "cuda": 8192}
_BATCH = {"cpu": 64, "cuda": 1024}
_BACKWARD = 3
"""A training step multiplies about three times as much as a forward pass: for the scores, for the
gradient of the weights and for the gradient of the inputs."""


@dataclass(frozen=True)
class Machine:
    """Processor, cores, GPU, versions and load."""

    processor: str
    cores: int
    gpu: str
    python: str
    torch: str
    load: float
    """Mean number of processes that wanted a core during the last minute."""

    def __str__(self) -> str:
        where = f"{self.gpu}, " if self.gpu else ""
        busy = f", load {self.load:.1f} before the run"
        cores = f"{number_of(self.cores, 'core')} of {self.processor}"
        return f"{where}{cores}, PyTorch {self.torch}, Python {self.python}{busy}"


def this_machine(device: str) -> Machine:
    """This machine; its GPU is named only if it is used."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    return Machine(
        processor=_processor(),
        cores=torch.get_num_threads(),
        gpu=gpu,
        python=platform.python_version(),
        torch=torch.__version__,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )


def _processor() -> str:
    """The processor's name and the vector instructions that decide its speed."""
    name, vectors = platform.processor() or platform.machine(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return name
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = " ".join(value.split())
        elif key.strip() == "flags":
            vectors = next((f" ({v})" for v in ("avx512f", "avx2") if v in value.split()), "")
    return name + vectors


def multiplication_speed(device: str, precision: str = "float32") -> float:
    """FLOP/s of a large matrix product or a large convolution, whichever is faster."""
    kind = torch.device(device).type
    side, batch = _SIDE[kind], _BATCH[kind]
    dtype = torch.bfloat16 if kind == "cuda" and precision == "bf16" else torch.float32
    layout = torch.channels_last if kind == "cuda" else torch.contiguous_format
    make = partial(torch.randn, device=device, dtype=dtype)
    a, b = make(side, side), make(side, side)
    images = make(batch, 256, 16, 16).contiguous(memory_format=layout)
    filters = make(256, 256, 3, 3).contiguous(memory_format=layout)
    with _tf32(precision == "tf32"):
        times = interleaved(
            {"product": lambda: a @ b, "convolution": lambda: conv2d(images, filters, padding=1)},
            5,
            device,
        )
    product = 2.0 * side**3 / times["product"].best
    convolution = 2.0 * batch * 16 * 16 * 256 * 256 * 9 / times["convolution"].best
    return max(product, convolution)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def step_flops(forward: float, batch: int) -> float:
    """FLOP of a training step, from the FLOP of one sample's forward pass."""
    return _BACKWARD * forward * batch
