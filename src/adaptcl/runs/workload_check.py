"""Refuses a model and data that cannot work together, before any training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.data.items import extremes
from adaptcl.errors import DataError, SettingError, TraceError
from adaptcl.runs.workload import Workload
from adaptcl.training.batches import smallest_batch
from adaptcl.training.trial import check_scores, tried_loss, try_metrics
from adaptcl.training.worker import refuse_lone_sample
from adaptcl.units.tensors import Tensors, call_model, each_tensor
from adaptcl.units.tracing.forward import called, failures_named

_TABLES = (nn.Embedding, nn.EmbeddingBag)


def check_model_and_data(workload: Workload, batch_size: int) -> None:
    """An error if the model cannot be traced, or trained and tested on the data."""
    check_lookup_tables(workload)
    workload.units  # noqa: B018  # tracing names the module that fails
    check_workload(workload, batch_size)


def check_workload(workload: Workload, batch_size: int) -> None:
    """An error if the model, the objective and the data do not go together, if the model fails in
    training, or cannot train on the smallest batch there will be."""
    check_targets(workload)
    _check_training(workload, batch_size)
    if workload.objective.has_custom_metrics:
        try_metrics(workload.objective, copy.deepcopy(workload.model).eval(), workload.test)
    for worker, samples in enumerate(workload.worker_samples):
        if smallest_batch(len(samples), batch_size) == 1:
            refuse_lone_sample(worker, workload.model, samples, batch_size)
            return  # the model can take a single sample, whoever has it


def check_targets(workload: Workload) -> None:
    """An error if the model's outputs do not go with the targets."""
    objective = workload.objective
    inputs, targets = workload.pair()
    tested = copy.deepcopy(workload.model).eval()
    with torch.no_grad(), failures_named(tested, inputs, ""):
        scores = objective.outputs(tested, inputs, targets)
    check_scores(objective, scores, targets)
    if objective.class_dim is not None:
        _check_classes(workload, scores.shape[objective.class_dim])


def _check_classes(workload: Workload, classes: int) -> None:
    holders = [*enumerate(workload.worker_samples), *enumerate(workload.held_back)]
    named = [(f"worker {worker}", samples) for worker, samples in holders]
    for who, samples in [*named, ("the test data", workload.test)]:
        highest = int(each_tensor(samples.targets)[0].max())
        # One channel of scores tells two classes of pixels apart.
        if highest >= (2 if classes == 1 and not samples.has_labels else classes):
            raise DataError(
                f"The model gives scores for {classes} classes, but {who} has a label {highest}."
            )


def _check_training(workload: Workload, batch_size: int) -> None:
    """Some models return more in training, such as the scores of a second head, and some fail only
    there."""
    devices = [workload.device] if workload.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        try:
            _step(workload, *workload.pair())
        except TraceError:
            if not workload.worker_samples:
                raise
            # A model that cannot train on two samples may be able to on a full batch.
            most = max(workload.worker_samples, key=len)
            some = torch.arange(min(batch_size, len(most)), device=workload.device)
            _step(workload, *most.batch(some))


def _step(workload: Workload, inputs: Tensors, targets: Any) -> None:
    """Both passes of a training step, on a copy."""
    objective = workload.objective
    tried = copy.deepcopy(workload.model).train()
    with failures_named(tried, inputs, " in training"):
        outputs = objective.outputs(tried, inputs, targets)
    check_scores(objective, outputs, targets, " in training")
    root = tried_loss(objective, outputs, targets).sum()
    with failures_named(tried, inputs, " in training"):
        root.backward()  # type: ignore[no-untyped-call]


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
    parts = (*workload.worker_samples, *workload.held_back, workload.test)
    inputs = [each.example for each in parts]
    if any(each.dtype == torch.int64 for each in each_tensor(inputs[0])):
        _check_numbers(workload.model, inputs)


def _check_numbers(model: nn.Module, inputs: Sequence[Tensors]) -> None:
    """Run the samples with the lowest and the highest numbers, and watch the tables."""
    extreme = extremes(inputs)
    probe = copy.deepcopy(model).cpu().eval()
    for name, module in probe.named_modules():
        if isinstance(module, _TABLES):
            module.register_forward_pre_hook(partial(_check_look_up, name))
    try:
        with torch.no_grad():
            call_model(probe, extreme)
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
