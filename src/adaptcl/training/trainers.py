"""Which trainer a worker gets, by the device its data is on."""

from __future__ import annotations

import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.training.captured import CapturedTrainer
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.units import UnitMap

PRECISIONS = ("float32", "tf32", "bf16")


def trainer(model: nn.Module, units: UnitMap, samples: Samples, precision: str) -> Trainer:
    """Captured steps on a GPU, the plain loop elsewhere.

    `precision` is how a GPU multiplies: in full, in TF32, or in bfloat16 with full-precision
    weights. Other devices always compute in full.
    """
    if samples.labels.device.type != "cuda":
        return PlainTrainer(model, units, samples)
    fast = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
    return CapturedTrainer(model, units, samples, half=precision == "bf16")
