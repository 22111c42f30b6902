"""What a run works on: the model, each worker's samples, and the test samples.

A model and data that do not fit together are refused here, before any training.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from adaptcl.errors import DataError, SettingError, TraceError, describe_type, suggest_instance
from adaptcl.seeds import generator
from adaptcl.training.batches import smallest_batch
from adaptcl.training.worker import refuse_lone_sample
from adaptcl.units import UnitMap, trace
from adaptcl.units.forward import called, failures_named

_TABLES = (nn.Embedding, nn.EmbeddingBag)


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


def check_model_and_data(workload: Workload, batch_size: int) -> None:
    """An error if the model cannot be traced, or trained and tested on the data."""
    check_lookup_tables(workload)
    workload.units  # noqa: B018  # tracing names the module that fails
    check_workload(workload, batch_size)


def check_workload(workload: Workload, batch_size: int) -> None:
    """An error if the model fails in training, cannot train on the smallest batch there will be,
    or does not give a score for every label."""
    with torch.no_grad():
        scores = _require_scores(copy.deepcopy(workload.model).eval()(workload.example()))
    _check_training(workload, batch_size)
    holders = {f"worker {worker}": each for worker, each in enumerate(workload.worker_samples)}
    for who, samples in {**holders, "the test data": workload.test}.items():
        highest = int(samples.labels.max())
        if highest >= scores.shape[1]:
            raise DataError(
                f"The model gives scores for {scores.shape[1]} classes, but {who} has a label "
                f"{highest}."
            )
    for worker, samples in enumerate(workload.worker_samples):
        if smallest_batch(len(samples), batch_size) == 1:
            refuse_lone_sample(worker, workload.model, samples, batch_size)
            return  # the model can take a single sample, whoever has it


def _require_scores(scores: object, when: str = "") -> Tensor:
    if isinstance(scores, Tensor) and scores.ndim == 2:
        return scores
    shape = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else "no tensor at all"
    raise DataError(f"The model must give [samples, classes] scores, but{when} it gives {shape}.")


def _check_training(workload: Workload, batch_size: int) -> None:
    """Some models return more in training, such as the scores of a second head, and some fail only
    there."""
    devices = [workload.device] if workload.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        try:
            _step(workload.model, workload.example())
        except TraceError:
            # A model that cannot train on two samples may be able to on a full batch.
            most = max(workload.worker_samples, key=len)
            some = torch.arange(min(batch_size, len(most)), device=workload.device)
            _step(workload.model, most.batch(some)[0])


def _step(model: nn.Module, inputs: Tensor) -> None:
    """Both passes of a training step, on a copy."""
    tried = copy.deepcopy(model).train()
    with failures_named(tried, inputs, " in training"):
        output = tried(inputs)
    scores = _require_scores(output, " in training")
    with failures_named(tried, inputs, " in training"):
        scores.sum().backward()  # type: ignore[no-untyped-call]


def check_lookup_tables(workload: Workload) -> None:
    """An error if the model looks up numbers that its embedding tables have no row for.

    Check this before the model runs on a GPU: there a missing row ends the process.
    """
    for name, module in workload.model.named_modules():
        if isinstance(module, _TABLES) and module.sparse:
            raise SettingError(
                f"{called(name, module)} has sparse gradients, which training cannot use here; "
                "make it with sparse=False."
            )
    inputs = [each.inputs for each in (*workload.worker_samples, workload.test)]
    if inputs[0].dtype == torch.int64:
        _check_numbers(workload.model, inputs)


def _check_numbers(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Run the samples with the lowest and the highest number, and watch the tables."""
    low = min(inputs, key=lambda each: int(each.min()))
    high = max(inputs, key=lambda each: int(each.max()))
    extreme = torch.stack(
        [
            low[int(low.flatten(1).amin(1).argmin())].cpu(),
            high[int(high.flatten(1).amax(1).argmax())].cpu(),
        ]
    )
    probe = copy.deepcopy(model).cpu().eval()
    for name, module in probe.named_modules():
        if isinstance(module, _TABLES):
            module.register_forward_pre_hook(partial(_check_look_up, name))
    try:
        with torch.no_grad():
            probe(extreme)
    except DataError:
        raise
    except Exception:
        return  # tracing comes next and names the module that failed


def _check_look_up(
    name: str, table: nn.Embedding | nn.EmbeddingBag, inputs: tuple[Tensor, ...]
) -> None:
    lowest, highest = int(inputs[0].min()), int(inputs[0].max())
    if lowest < 0 or highest >= table.num_embeddings:
        raise DataError(
            f"{called(name, table)} has rows 0 to {table.num_embeddings - 1}, but numbers from "
            f"{lowest} to {highest} are looked up in it."
        )
