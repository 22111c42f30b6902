"""Statistics of norm layers, measured anew on the model that is tested and delivered.

Batch norm keeps running means and variances, which a worker measures on its own model while it
trains. Merged, they are those of the workers' models and not of the merged one: averaged weights
make smaller activations than any of theirs, and without a barrier they are of different ages
besides. Usually a point or two is lost by that, and sometimes far more: a model of SSP was right
about 22 % with merged statistics and 63 % with its own. Whoever has some training samples where the
model is tested can measure them again; training never sees them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.units import State

USUAL_COUNT = 2000
"""Samples that suffice for statistics of 512 channels on 2×2 pixels to be steady."""
_BATCH = 250


class FreshStatistics:
    """Measures the statistics of one state of a model after the other on the same samples."""

    def __init__(self, model: nn.Module, parts: Sequence[Samples], count: int) -> None:
        """On so many samples, or all if there are fewer, spread evenly over the parts."""
        if count == 1:
            raise SettingError("fresh_statistics is 1, but a variance needs 2 samples or more.")
        self._model = copy.deepcopy(model).eval()
        self._norms = {
            name: module
            for name, module in self._model.named_modules()
            if isinstance(module, _NormBase) and module.running_mean is not None
        }
        self._statistics = {
            f"{name}.running_{what}" for name in self._norms for what in ("mean", "var")
        }
        for module in self._norms.values():
            module.momentum = None  # all batches count alike
        self._samples = _spread(parts, count)

    @torch.no_grad()
    def of(self, state: State) -> State:
        """The same model with statistics of its own, as new tensors."""
        if not self._norms:
            return state
        self._model.load_state_dict(state)
        for module in self._norms.values():
            module.reset_running_stats()
            module.train()
        places = torch.arange(len(self._samples), device=self._samples.labels.device)
        # In equal chunks: a rest of one sample would have no variance.
        for chunk in places.tensor_split(-(-len(places) // _BATCH)):
            self._model(self._samples.batch(chunk)[0])
        measured = self._model.state_dict()
        return {
            name: measured[name].clone() if name in self._statistics else tensor
            for name, tensor in state.items()
        }


def _spread(parts: Sequence[Samples], count: int) -> Samples:
    """Some of the samples of all parts, mixed: a batch has something of every worker."""
    lengths = [len(part) for part in parts]
    total = sum(lengths)
    number = min(count, total)
    chosen = torch.arange(number) * total // number
    taken = [
        part.take(own - begin)
        for part, begin, length in zip(parts, _begins(lengths), lengths, strict=True)
        if len(own := chosen[(chosen >= begin) & (chosen < begin + length)])
    ]
    together = replace(
        taken[0],
        inputs=torch.cat([each.inputs for each in taken]),
        labels=torch.cat([each.labels for each in taken]),
    )
    order = torch.randperm(len(together), generator=torch.Generator().manual_seed(0))
    return together.take(order)


def _begins(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:place]) for place in range(len(lengths))]
