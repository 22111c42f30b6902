"""Tests of a model: its loss and the metrics of the objective, over all samples.

`FreshStatistics` measures batch-norm statistics again before a merged model is tested.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from adaptcl.data import Samples
from adaptcl.data.samples import joined
from adaptcl.errors import SettingError
from adaptcl.training.cpu.layout import cpu_layout, gpu_layout, in_layout, laid_out, speed_up_on_cpu
from adaptcl.training.objectives.metrics import Accuracy, Metric, merged_value
from adaptcl.training.objectives.objective import CLASSIFICATION, LOSS, Objective
from adaptcl.training.task import WorkerTest
from adaptcl.units import State
from adaptcl.units.tensors import call_model
from adaptcl.units.user_model import evaluating

USUAL_COUNT = 2000  # samples that make the statistics of 512 channels on 2×2 pixels steady
_BATCH = 250


@dataclass(frozen=True)
class Score:
    """The result of one test."""

    loss: float
    metrics: Mapping[str, float]  # by name. A metric may be NaN, such as R² of equal targets.
    main: str = "accuracy"  # the name of the main metric
    right: tuple[int, ...] = ()
    """How many samples of each class were recognised; empty without classes."""
    samples: tuple[int, ...] = ()  # how many samples each class has
    by_worker: Mapping[int, WorkerTest] = field(default_factory=dict)
    """The tests that this is the mean of, where workers test."""
    variants: Mapping[str, float] = field(default_factory=dict)
    """The main metric of the model in other forms (`runs/variants.py`), if they were measured."""

    @property
    def by_class(self) -> tuple[float | None, ...]:
        """The accuracy on each class; None where there are no samples."""
        pairs = zip(self.right, self.samples, strict=True)
        return tuple(right / samples if samples else None for right, samples in pairs)

    def on(self, labels: Sequence[int]) -> float | None:
        """The accuracy to expect on data with this many samples of each class.

        Classes that were not tested are left out; None if no other is left.
        """
        # Not strict: either side may lack the last classes.
        known = [(n, each) for n, each in zip(labels, self.by_class, strict=False) if n]
        tested = [(n, each) for n, each in known if each is not None]
        total = sum(n for n, _ in tested)
        return sum(n * each for n, each in tested) / total if total else None


class Judge:
    """Tests many states of one model on the same samples.

    It works on a copy of the model, in the form that is fastest on the device: on a busy machine
    a test takes cores from workers that train.
    """

    def __init__(
        self, model: nn.Module, samples: Samples, objective: Objective = CLASSIFICATION
    ) -> None:
        self._samples = samples
        self._objective = objective
        self._model = copy.deepcopy(model)
        self._layout = torch.contiguous_format
        device = samples.device
        example, _ = samples.batch(torch.arange(2, device=device) % len(samples))
        if device.type == "cuda":
            self._layout = gpu_layout(model, example)
            in_layout(self._model, self._layout)
        elif device.type == "cpu":
            self._layout = cpu_layout(model, example)
            speed_up_on_cpu(self._model, self._layout)

    def test(self, state: State) -> Score:
        self._model.load_state_dict(state)
        return score(self._model, self._samples, self._objective, self._layout)


@torch.no_grad()
def score(
    model: nn.Module,
    samples: Samples,
    objective: Objective = CLASSIFICATION,
    layout: torch.memory_format = torch.contiguous_format,
) -> Score:
    """Test a model on all samples. Does not wait for a GPU before the last batch."""
    model.eval()
    device, size = samples.device, objective.test_batch
    metrics = {name: _on_device(make(), device) for name, make in objective.metrics.items()}
    total = torch.zeros((), dtype=torch.float32, device=device)
    for start in range(0, len(samples), size):
        stop = min(start + size, len(samples))
        inputs, targets = samples.batch(torch.arange(start, stop, device=device))
        outputs = objective.outputs(model, laid_out(inputs, layout), targets)
        total += (stop - start) * objective.mean_loss(outputs, targets).detach()
        for metric in metrics.values():
            metric.update(outputs, targets)
    loss = float(total) / len(samples)
    found = {name: float(metric.compute()) for name, metric in metrics.items()}
    counts = next((m.by_class() for m in metrics.values() if isinstance(m, Accuracy)), ((), ()))
    if objective.main.name == LOSS:
        found[LOSS] = loss
    return Score(loss, found, objective.main.name, *counts)


def tested_locally(model: nn.Module, samples: Samples, objective: Objective) -> WorkerTest:
    """A worker's test of a model on the samples that it holds back."""
    with evaluating(model):
        found = score(model, samples, objective)
    return WorkerTest(
        len(samples),
        finite_or_none(found.loss),
        {name: finite_or_none(value) for name, value in found.metrics.items()},
    )


def merged_score(tests: Mapping[int, WorkerTest], objective: Objective) -> Score:
    """The tests of all workers as one, each with the weight of its samples.

    Means over samples come out as if all samples were at one place. Others, such as R², mean IoU
    or a user's metric, become the mean of what the workers found.
    """
    weights = [each.samples for each in tests.values()]
    metrics = {
        name: merged_value(
            objective.metrics.get(name),
            [each.metrics.get(name) for each in tests.values()],
            weights,
        )
        for name in objective.tested
    }
    loss = merged_value(None, [each.loss for each in tests.values()], weights)
    return Score(loss, metrics, objective.main.name, by_worker=tests)


def finite_or_none(value: float) -> float | None:
    """JSON has no word for infinity, nor for what is no number."""
    return value if math.isfinite(value) else None


def _on_device(metric: Metric, device: torch.device) -> Metric:
    metric.reset()
    to: Any = getattr(metric, "to", None)  # metrics of torchmetrics are modules
    return to(device) if callable(to) else metric


class FreshStatistics:
    """Measures batch-norm statistics of many states of one model on the same samples.

    Batch norm keeps running means and variances, which each worker measures on its model while it
    trains. Merged, they do not fit the merged model: averaged weights make smaller activations
    than those of any worker, and without a barrier they are of different ages besides. Usually
    that costs a point or two of accuracy, and sometimes far more: a model of SSP had 22 % with
    merged statistics and 63 % with fresh ones. With some training samples at hand the statistics
    can be measured again. Training never sees the fresh ones.
    """

    def __init__(self, model: nn.Module, samples: Sequence[Samples], count: int) -> None:
        """Take `count` samples, or all if there are fewer, spread evenly over the workers."""
        if count == 1:
            raise SettingError("fresh_statistics is 1, but a variance needs 2 samples or more.")
        self._model = copy.deepcopy(model).eval()
        self._norms = {
            name: module
            for name, module in self._model.named_modules()
            if isinstance(module, _NormBase) and module.running_mean is not None
        }
        self._statistics = {
            f"{name}.running_{kind}" for name in self._norms for kind in ("mean", "var")
        }
        for module in self._norms.values():
            module.momentum = None  # all batches count the same
        self._samples = _spread(samples, count)

    def of(self, state: State) -> State:
        """The state with fresh statistics in new tensors."""
        fresh = self.measured(state)
        return {**state, **fresh} if fresh else state

    @torch.no_grad()
    def measured(self, state: State) -> State:
        """The fresh statistics alone."""
        if not self._norms:
            return {}
        self._model.load_state_dict(state)
        for module in self._norms.values():
            module.reset_running_stats()
            module.train()
        indexes = torch.arange(len(self._samples), device=self._samples.device)
        # In equal chunks: a last chunk of one sample would have no variance.
        for chunk in indexes.tensor_split(-(-len(indexes) // _BATCH)):
            call_model(self._model, self._samples.batch(chunk)[0])
        measured = self._model.state_dict()
        return {name: measured[name].clone() for name in state if name in self._statistics}


def _spread(samples: Sequence[Samples], count: int) -> Samples:
    """Some of the samples of every worker, mixed so that each batch has some of all."""
    lengths = [len(each) for each in samples]
    total = sum(lengths)
    number = min(count, total)
    chosen = torch.arange(number) * total // number
    taken = [
        each.take(here - begin)
        for each, begin, length in zip(
            samples, accumulate(lengths, initial=0), lengths, strict=False
        )
        if len(here := chosen[(chosen >= begin) & (chosen < begin + length)])
    ]
    together = joined(taken)
    order = torch.randperm(len(together), generator=torch.Generator().manual_seed(0))
    return together.take(order)
