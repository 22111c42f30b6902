"""Refusing a model and data that do not go together, before any time is spent on training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from adaptcl.errors import DataError, SettingError, TraceError
from adaptcl.runs.materials import Materials
from adaptcl.training.batches import smallest_batch
from adaptcl.training.worker import refuse_lone_sample
from adaptcl.units.forward import called, failures_named

_TABLES = (nn.Embedding, nn.EmbeddingBag)


def refuse_misfit(materials: Materials, batch_size: int) -> None:
    """An error if the model does not give a score for every class there is a label of, fails in
    training, or cannot train on as few samples as a step would be on."""
    with torch.no_grad():
        scores = _checked(copy.deepcopy(materials.model).eval()(materials.example()))
    _refuse_in_training(materials, batch_size)
    holders = {f"worker {worker}": part for worker, part in enumerate(materials.parts)}
    for who, samples in {**holders, "the test data": materials.test}.items():
        highest = int(samples.labels.max())
        if highest >= scores.shape[1]:
            raise DataError(
                f"The model gives scores for {scores.shape[1]} classes, but {who} has a label "
                f"{highest}."
            )
    for worker, part in enumerate(materials.parts):
        if smallest_batch(len(part), batch_size) == 1:
            refuse_lone_sample(worker, materials.model, part, batch_size)
            return  # what holds for one such worker holds for all


def _checked(scores: object, when: str = "") -> Tensor:
    """What a model gave, if that is scores."""
    if isinstance(scores, Tensor) and scores.ndim == 2:
        return scores
    shape = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else "no tensor at all"
    raise DataError(f"The model must give [samples, classes] scores, but{when} it gives {shape}.")


def _refuse_in_training(materials: Materials, batch_size: int) -> None:
    """Some models give more in training than elsewhere, such as the scores of a second head, and
    some fail only there."""
    devices = [materials.device] if materials.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        try:
            _step(materials.model, materials.example())
        except TraceError:
            # One that cannot train on two samples may on as many as it will get.
            most = max(materials.parts, key=len)
            some = torch.arange(min(batch_size, len(most)), device=materials.device)
            _step(materials.model, most.batch(some)[0])


def _step(model: nn.Module, inputs: Tensor) -> None:
    """Both passes of a training step, on a copy."""
    tried = copy.deepcopy(model).train()
    with failures_named(tried, inputs, " in training"):
        output = tried(inputs)
    scores = _checked(output, " in training")
    with failures_named(tried, inputs, " in training"):
        scores.sum().backward()  # type: ignore[no-untyped-call]


def refuse_tables(materials: Materials) -> None:
    """An error if a model that looks numbers up in tables cannot be trained on these.

    To be asked before the model runs where the data is: a number that a table has no row for ends
    a process that works on a GPU.
    """
    for name, module in materials.model.named_modules():
        if isinstance(module, _TABLES) and module.sparse:
            raise SettingError(
                f"{called(name, module)} has sparse gradients, which training cannot use here; "
                "make it with sparse=False."
            )
    inputs = [each.inputs for each in (*materials.parts, materials.test)]
    if inputs[0].dtype == torch.int64:
        _refuse_numbers(materials.model, inputs)


def _refuse_numbers(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Watch what the samples with the lowest and the highest number of all look up."""
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
            module.register_forward_pre_hook(partial(_look_up, name))
    try:
        with torch.no_grad():
            probe(extreme)
    except DataError:
        raise
    except Exception:
        return  # tracing, which comes next, names the module that failed


def _look_up(name: str, table: nn.Embedding | nn.EmbeddingBag, given: tuple[Tensor, ...]) -> None:
    lowest, highest = int(given[0].min()), int(given[0].max())
    if lowest < 0 or highest >= table.num_embeddings:
        raise DataError(
            f"{called(name, table)} has rows 0 to {table.num_embeddings - 1}, but numbers from "
            f"{lowest} to {highest} are looked up in it."
        )
