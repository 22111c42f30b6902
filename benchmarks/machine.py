"""Which machine this is, as far as it matters for a benchmark."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Machine:
    """Processor, cores, GPU, versions, and how busy it was."""

    processor: str
    cores: int
    gpu: str
    python: str
    torch: str
    load: float
    """Mean number of processes that wanted a core over the last minute."""

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def __str__(self) -> str:
        where = f"{self.gpu}, " if self.gpu else ""
        busy = f", load {self.load:.1f} before the run"
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''} of {self.processor}"
        return f"{where}{cores}, PyTorch {self.torch}, Python {self.python}{busy}"


def this_machine(device: str) -> Machine:
    """The machine this runs on; its GPU is named only if it is used."""
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
    """The processor by name, with the vector instructions that decide its speed."""
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
