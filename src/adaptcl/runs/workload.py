"""What a run works on: the model, each worker's samples, and the test samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptcl import models
from adaptcl.config import JobSettings
from adaptcl.data import Samples, as_samples, load, partition
from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.samples import checksums
from adaptcl.errors import DataError, SettingError, describe_type, suggest_instance
from adaptcl.seeds import generator
from adaptcl.units import UnitMap, trace


@dataclass(frozen=True)
class Workload:
    """A model and its data, on one device."""

    model: nn.Module
    worker_samples: Sequence[Samples]
    test: Samples
    fixed: tuple[str, ...]
    """Patterns of module names whose units are never cut."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if they have any."""
    origin: tuple[tuple[int, int], ...] = ()
    """Checksums of training data from Python before it is dealt, so that no seed changes them."""

    def example(self) -> Tensor:
        """A batch of two samples: batch norm cannot train on one."""
        return self.test.batch(torch.arange(2, device=self.device) % len(self.test))[0]

    @cached_property
    def units(self) -> UnitMap:
        return trace(self.model, self.example(), self.fixed)

    @property
    def device(self) -> torch.device:
        return self.test.labels.device


def load_workload(job: JobSettings, progress: OnProgress = silent) -> Workload:
    """Load the model and the data that the settings name."""
    _device(job)
    models.find(job.model)
    data = load(job.data, Path(job.data_dir) if job.data_dir else None, progress)
    model = models.build(job.model, data.train.shape, len(data.classes), job.seed)
    fixed = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    made = _on_device(model, deal(data.train, job), data.test, (*fixed, *job.fixed), job)
    return replace(made, classes=data.classes)


def workload_from_python(model: nn.Module, train: Any, test: Any, job: JobSettings) -> Workload:
    """Take the user's model and data; `train` may be a list with a data set for each worker."""
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"The model is {describe_type(model)}, but it must be an "
            f"nn.Module{suggest_instance(model)}."
        )
    dealt = datasets_by_worker(train)
    whole = [_samples(train, "The training data")] if dealt is None else dealt
    if dealt is None:
        dealt = deal(whole[0], job)
    elif len(dealt) != job.workers:
        raise SettingError(f"workers is {job.workers}, but train is a list of {len(dealt)}.")
    elif job.samples:
        raise SettingError(
            f"samples is {job.samples}, but train is a list with a data set for each worker, of "
            f"which all is used."
        )
    made = _on_device(model, dealt, _samples(test, "The test data"), job.fixed, job)
    return replace(made, origin=tuple(map(checksums, whole)))


def datasets_by_worker(train: Any) -> list[Samples] | None:
    """The workers' data sets if `train` is a list of data sets, else None."""
    if not isinstance(train, list):
        return None
    if not train:
        raise DataError("train is an empty list; it must hold a data set for each worker.")
    if _is_inside_a_data_set(train[0]):
        return None
    return [_samples(each, f"Worker {worker}'s data") for worker, each in enumerate(train)]


def _samples(source: Any, whose: str) -> Samples:
    try:
        return as_samples(source)
    except DataError as error:
        raise DataError(f"{whose} cannot be used: {error}") from error


def deal(samples: Samples, job: JobSettings) -> list[Samples]:
    """Divide the data among the workers, by the settings `samples` and `partition`."""
    if job.samples:
        samples = _drawn(samples, job)
    randomness = generator(job.seed, "partition")
    labels = samples.labels.cpu()
    indexes = {
        "iid": lambda: partition.iid(labels, job.workers, randomness),
        "by-label": lambda: partition.by_label_share(
            labels, job.workers, job.label_share / 100, randomness
        ),
        "dirichlet": lambda: partition.dirichlet(
            labels, job.workers, job.concentration, randomness
        ),
    }[job.partition]()
    return [samples.take(each) for each in indexes]


def _drawn(samples: Samples, job: JobSettings) -> Samples:
    if job.samples > len(samples):
        raise SettingError(
            f"samples is {job.samples}, but the data set has only {len(samples)} to train on."
        )
    order = torch.randperm(len(samples), generator=generator(job.seed, "samples"))
    # In their old order, so that asking for all samples changes nothing.
    return samples.take(order[: job.samples].sort().values)


def _on_device(
    model: nn.Module,
    worker_samples: Sequence[Samples],
    test: Samples,
    fixed: tuple[str, ...],
    job: JobSettings,
) -> Workload:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError("The model has no parameters that can be trained.")
    device = _device(job)
    for worker, samples in enumerate(worker_samples):
        if samples.shape != test.shape:
            raise DataError(
                f"Worker {worker}'s inputs have shape {samples.shape}, those for testing "
                f"{test.shape}."
            )
        types = (samples.inputs.dtype, test.inputs.dtype)
        if types[0] != types[1] and torch.int64 in types:
            raise DataError(
                f"Worker {worker}'s inputs are {types[0]}, those for testing {types[1]}."
            )
    on_device = [samples.to(device) for samples in worker_samples]
    return Workload(model.to(device), on_device, test.to(device), fixed)


def _device(job: JobSettings) -> torch.device:
    try:
        device = torch.device(job.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise SettingError(
            f"device is {job.device!r}, but PyTorch has no such device on this machine."
        ) from None
    return device


def _is_inside_a_data_set(item: Any) -> bool:
    """Whether a list that begins with this item is one data set, not one for each worker.

    One data set begins with all inputs, or with one pair (input, label).
    """
    if isinstance(item, Tensor | np.ndarray):
        return True
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    return isinstance(item[1], int) or getattr(item[1], "ndim", None) == 0
