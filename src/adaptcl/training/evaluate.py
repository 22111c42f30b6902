"""Top-1 accuracy of a model on samples."""

from __future__ import annotations

import torch
from torch import nn

from adaptcl.data import Samples


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples, batch_size: int = 512) -> float:
    """The fraction of samples whose label gets the highest score."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=samples.labels.device)
    for start in range(0, len(samples), batch_size):
        stop = min(start + batch_size, len(samples))
        inputs, labels = samples.batch(torch.arange(start, stop, device=samples.labels.device))
        right += (model(inputs).argmax(1) == labels).sum()
    return int(right) / len(samples)
