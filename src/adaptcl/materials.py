"""What a run works on: a model, each worker's data, and the data the model is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl import models
from adaptcl.config import JobSettings
from adaptcl.data import Samples, as_samples, load, partition
from adaptcl.data.progress import Progress, silent
from adaptcl.errors import DataError, SettingError
from adaptcl.seeds import generator


@dataclass(frozen=True)
class Materials:
    """A model and its data, all on one device."""

    model: nn.Module
    parts: Sequence[Samples]
    """Each worker's data."""
    test: Samples
    fixed: tuple[str, ...]
    """Patterns of module names whose units are never cut."""

    def example(self) -> Tensor:
        """A small batch that the model takes."""
        return self.test.batch(torch.arange(min(2, len(self.test)), device=self.device))[0]

    @property
    def device(self) -> torch.device:
        """Where model and data are."""
        return self.test.labels.device


def by_name(job: JobSettings, progress: Progress = silent) -> Materials:
    """The model and data that the settings name."""
    data = load(job.data, Path(job.data_dir) if job.data_dir else None, progress)
    model = models.build(job.model, data.train.shape, len(data.classes), job.seed)
    own = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    return _on_device(model, deal(data.train, job), data.test, (*own, *job.fixed), job)


def given(model: nn.Module, train: Any, test: Any, job: JobSettings) -> Materials:
    """A user's own model and data; `train` may be a list with a data set for each worker."""
    parts = given_parts(train)
    if parts is None:
        parts = deal(as_samples(train), job)
    elif len(parts) != job.workers:
        raise SettingError(f"workers is {job.workers}, but train is a list of {len(parts)}.")
    return _on_device(model, parts, as_samples(test), job.fixed, job)


def given_parts(train: Any) -> list[Samples] | None:
    """The workers' data sets, if `train` is a list of data sets; else None."""
    return [as_samples(part) for part in train] if isinstance(train, list) else None


def deal(samples: Samples, job: JobSettings) -> list[Samples]:
    """Each worker's part of the data, by the setting `partition`."""
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


def _on_device(
    model: nn.Module,
    parts: Sequence[Samples],
    test: Samples,
    fixed: tuple[str, ...],
    job: JobSettings,
) -> Materials:
    try:
        device = torch.device(job.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise SettingError(
            f"device is {job.device!r}, but PyTorch has no such device on this machine."
        ) from None
    for worker, part in enumerate(parts):
        if part.shape != test.shape:
            raise DataError(
                f"Worker {worker}'s inputs have shape {part.shape}, those for testing {test.shape}."
            )
    return Materials(model.to(device), [part.to(device) for part in parts], test.to(device), fixed)
