"""What a run works on: a model, each worker's data, and the data the model is tested on."""

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
class Materials:
    """A model and its data, all on one device."""

    model: nn.Module
    parts: Sequence[Samples]
    """Each worker's data."""
    test: Samples
    fixed: tuple[str, ...]
    """Patterns of module names whose units are never cut."""
    classes: tuple[str, ...] = ()
    """Their names, where they have any."""
    origin: tuple[tuple[int, int], ...] = ()
    """Checksums of training data given from Python as it was given: no seed has a part in them."""

    def example(self) -> Tensor:
        """A small batch that the model takes; of two, as batch norm cannot train on one."""
        return self.test.batch(torch.arange(2, device=self.device) % len(self.test))[0]

    @cached_property
    def units(self) -> UnitMap:
        """The model's units, traced once."""
        return trace(self.model, self.example(), self.fixed)

    @property
    def device(self) -> torch.device:
        """Where model and data are."""
        return self.test.labels.device


def by_name(job: JobSettings, progress: OnProgress = silent) -> Materials:
    """The model and data that the settings name."""
    _device(job)
    models.find(job.model)
    data = load(job.data, Path(job.data_dir) if job.data_dir else None, progress)
    model = models.build(job.model, data.train.shape, len(data.classes), job.seed)
    own = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    made = _on_device(model, deal(data.train, job), data.test, (*own, *job.fixed), job)
    return replace(made, classes=data.classes)


def given(model: nn.Module, train: Any, test: Any, job: JobSettings) -> Materials:
    """A user's own model and data; `train` may be a list with a data set for each worker."""
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"The model is {describe_type(model)}, but it must be an "
            f"nn.Module{suggest_instance(model)}."
        )
    parts = given_parts(train)
    whole = [_samples(train, "The training data")] if parts is None else parts
    if parts is None:
        parts = deal(whole[0], job)
    elif len(parts) != job.workers:
        raise SettingError(f"workers is {job.workers}, but train is a list of {len(parts)}.")
    elif job.samples:
        raise SettingError(
            f"samples is {job.samples}, but train is a list with a data set for each worker, of "
            f"which all is used."
        )
    made = _on_device(model, parts, _samples(test, "The test data"), job.fixed, job)
    return replace(made, origin=tuple(map(checksums, whole)))


def given_parts(train: Any) -> list[Samples] | None:
    """The workers' data sets, if `train` is a list of data sets; else None."""
    if not isinstance(train, list):
        return None
    if not train:
        raise DataError("train is an empty list; it must hold a data set for each worker.")
    if _is_inside_a_data_set(train[0]):
        return None
    return [_samples(part, f"Worker {worker}'s data") for worker, part in enumerate(train)]


def _samples(source: Any, whose: str) -> Samples:
    try:
        return as_samples(source)
    except DataError as error:
        raise DataError(f"{whose} cannot be used: {error}") from error


def deal(samples: Samples, job: JobSettings) -> list[Samples]:
    """Each worker's part of the data, by the settings `samples` and `partition`."""
    if job.samples:
        samples = _drawn(samples, job)
    randomness = generator(job.seed, "partition")
    labels = samples.labels.cpu()
    parts = {
        "iid": lambda: partition.iid(labels, job.workers, randomness),
        "by-label": lambda: partition.by_label_share(
            labels, job.workers, job.label_share / 100, randomness
        ),
        "dirichlet": lambda: partition.dirichlet(
            labels, job.workers, job.concentration, randomness
        ),
    }[job.partition]()
    return [samples.take(indexes) for indexes in parts]


def _drawn(samples: Samples, job: JobSettings) -> Samples:
    if job.samples > len(samples):
        raise SettingError(
            f"samples is {job.samples}, but the data set has only {len(samples)} to train on."
        )
    order = torch.randperm(len(samples), generator=generator(job.seed, "samples"))
    # In their old order, so that to ask for all of them is to ask for nothing.
    return samples.take(order[: job.samples].sort().values)


def _on_device(
    model: nn.Module,
    parts: Sequence[Samples],
    test: Samples,
    fixed: tuple[str, ...],
    job: JobSettings,
) -> Materials:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError("The model has no parameters that can be trained.")
    device = _device(job)
    for worker, part in enumerate(parts):
        if part.shape != test.shape:
            raise DataError(
                f"Worker {worker}'s inputs have shape {part.shape}, those for testing {test.shape}."
            )
        kinds = (part.inputs.dtype, test.inputs.dtype)
        if kinds[0] != kinds[1] and torch.int64 in kinds:
            raise DataError(
                f"Worker {worker}'s inputs are {kinds[0]}, those for testing {kinds[1]}."
            )
    return Materials(model.to(device), [part.to(device) for part in parts], test.to(device), fixed)


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
    """Whether a list that begins so is one data set rather than one for each worker.

    It is if it begins with all inputs, or with one (input, label).
    """
    if isinstance(item, Tensor | np.ndarray):
        return True
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    return isinstance(item[1], int) or getattr(item[1], "ndim", None) == 0
