"""Top-1 accuracy of a model on samples."""

from __future__ import annotations

import copy

import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.training.cpu_model import quickened
from adaptcl.training.layout import cpu_layout, gpu_layout, in_layout, laid_out
from adaptcl.units import State


class Judge:
    """Tests one state of a model after the other on the same samples.

    The model is a copy, in the form in which the device computes it fastest: on a busy server a
    test takes cores from workers that train.
    """

    def __init__(self, model: nn.Module, samples: Samples) -> None:
        self._samples = samples
        self._model = copy.deepcopy(model)
        self._layout = torch.contiguous_format
        device = samples.labels.device
        example, _ = samples.batch(torch.arange(2, device=device) % len(samples))
        if device.type == "cuda":
            self._layout = gpu_layout(model, example)
            in_layout(self._model, self._layout)
        elif device.type == "cpu":
            self._layout = cpu_layout(model, example)
            quickened(self._model, self._layout)

    def accuracy(self, state: State) -> float:
        """Of the model with these tensors."""
        self._model.load_state_dict(state)
        return accuracy(self._model, self._samples, layout=self._layout)


@torch.no_grad()
def accuracy(
    model: nn.Module,
    samples: Samples,
    batch_size: int = 512,
    layout: torch.memory_format = torch.contiguous_format,
) -> float:
    """The fraction of samples whose label gets the highest score."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=samples.labels.device)
    for start in range(0, len(samples), batch_size):
        stop = min(start + batch_size, len(samples))
        inputs, labels = samples.batch(torch.arange(start, stop, device=samples.labels.device))
        right += (model(laid_out(inputs, layout)).argmax(1) == labels).sum()
    return int(right) / len(samples)
