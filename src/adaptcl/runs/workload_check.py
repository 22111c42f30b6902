"""Refuses a model and data that do not fit together, before any training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from adaptcl.errors import DataError, SettingError, TraceError
from adaptcl.runs.workload import Workload
from adaptcl.training.batches import smallest_batch
from adaptcl.training.worker import refuse_lone_sample
from adaptcl.units.forward import called, failures_named

_TABLES = (nn.Embedding, nn.EmbeddingBag)


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
