"""Refuses a model, data and what else users bring if they cannot work together, before training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.data.samples import extremes
from adaptcl.errors import AdaptCLError, DataError, SettingError, TraceError, describe_type, listed
from adaptcl.runs.workload import Workload
from adaptcl.training.objectives.objective import CLASSES, Objective
from adaptcl.training.optimizers import (
    OptimizerFactory,
    Schedule,
    optimizer,
    rate_factor,
)
from adaptcl.training.task import Recipe
from adaptcl.units.tensors import Tensors, call_model, each_tensor, shapes_in_words
from adaptcl.units.user_model import called, failures_named, without_effects

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
            if len(names := workload.classes) > classes:
                raise DataError(
                    f"The data has {len(names)} classes ({listed(names)}), but the model gives "
                    f"{classes} score{'s' * (classes != 1)}."
                )
            raise DataError(
                f"The model gives scores for {classes} classes, but {who} has a label {highest}; "
                "labels begin at 0."
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
        # Batch norm cannot train on a single sample.
        lone = [worker for worker, part in enumerate(workload.worker_samples) if len(part) == 1]
        if lone or batch_size == 1:
            why = "batch_size is 1" if batch_size == 1 else f"worker {lone[0]} has only one"
            one = workload.test.batch(torch.arange(1, device=workload.device))
            _step(workload, *one, f" in training on a single sample ({why})")


def _step(workload: Workload, inputs: Tensors, targets: Any, when: str = " in training") -> None:
    """Both passes of a training step, on a copy."""
    objective = workload.objective
    tried = copy.deepcopy(workload.model).train()
    with failures_named(tried, inputs, when):
        outputs = objective.outputs(tried, inputs, targets)
    check_scores(objective, outputs, targets, when)
    root = tried_loss(objective, outputs, targets).sum()
    with failures_named(tried, inputs, when):
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


_METRIC_SAMPLES = 256  # how many test samples a custom metric is tried on: some need all classes


def softmax_warning(workload: Workload) -> str | None:
    """A warning if the model gives probabilities to a loss that takes the softmax itself."""
    objective, (inputs, targets) = workload.objective, workload.pair()
    if not objective.is_ready_made or objective.class_dim is None:
        return None
    tested = copy.deepcopy(workload.model).eval()
    with without_effects(inputs), failures_named(tested, inputs):
        scores = objective.outputs(tested, inputs, targets)
    sums = scores.sum(objective.class_dim)
    is_one = bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-4))
    if scores.shape[objective.class_dim] < 2 or scores.min() < 0 or not is_one:
        return None
    return (
        "The model gives probabilities, which add up to 1, but the loss of objective "
        f"{objective.name!r} takes the softmax itself and learns little from them; leave the "
        "softmax out of the model."
    )


def check_scores(objective: Objective, scores: object, targets: Any, when: str = "") -> None:
    """An error if a model's outputs do not have the form that the objective needs."""
    wanted = objective.scores
    if not wanted:
        return
    if not isinstance(scores, Tensor) or scores.ndim != len(wanted):
        shape = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else "no tensor at all"
        raise DataError(
            f"The model must give [{', '.join(wanted)}] scores, but{when} it gives {shape}."
        )
    places = [size for size, name in zip(scores.shape, wanted, strict=True) if name not in CLASSES]
    if list(targets.shape) != places:
        raise DataError(
            f"The model gives scores of the shape {list(scores.shape)}, which goes with targets of "
            f"the shape {places}, but these have {list(targets.shape)}."
        )


def tried_loss(objective: Objective, outputs: Any, targets: Tensors) -> Tensor:
    """The loss of one batch in training; an error if it cannot be used as one."""
    where = f"outputs {shapes_in_words(outputs)} and targets {shapes_in_words(targets)}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loss = objective.loss(outputs, targets)
        except AdaptCLError:
            raise
        except Exception as error:  # a user's loss may raise anything
            raise SettingError(f"The loss failed on {where}: {_first_line(error)}") from error
    count = len(each_tensor(targets)[0])
    if not isinstance(loss, Tensor):
        raise SettingError(
            f"The loss gives {describe_type(loss)}, but it must give a tensor: one number, or one "
            "for each sample."
        )
    if loss.ndim and tuple(loss.shape) != (count,):
        raise SettingError(
            f"The loss gives a tensor of the shape {list(loss.shape)} on {count} samples, but it "
            "must give one number, or one for each sample."
        )
    if not loss.requires_grad:
        raise SettingError(
            "The loss has no gradient, so nothing can be learned from it; compute it from the "
            "model's outputs by operations of PyTorch."
        )
    # PyTorch only warns here, and then compares every output with every target.
    warned = any("target size" in str(each.message) for each in caught)
    if warned or _mixes_samples(objective, outputs, targets):
        raise DataError(
            f"The loss got {where}, and would compare outputs with targets of other samples; give "
            "both one shape."
        )
    if not bool(torch.isfinite(loss).all()):
        mean = float(loss.detach().mean())
        raise DataError(
            f"The loss of the first batch is {mean} before any training; look at the scale of "
            "inputs and targets."
        )
    return loss


def _mixes_samples(objective: Objective, outputs: Any, targets: Any) -> bool:
    """Whether a loss of outputs [N, 1] and targets [N] compares each with each by broadcasting.

    Then it makes no difference which target belongs to which output, and yet the gradient of one
    output depends on the targets of others. Neither alone would show it: an absolute error may
    not care about the order, and a correlation is about all samples at once.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or len(targets) < 2:
        return False
    shapes = {tuple(outputs.shape), tuple(targets.shape)}
    if shapes != {(len(targets),), (len(targets), 1)} or not targets.is_floating_point():
        return False
    probe = torch.linspace(-1, 1, len(targets), device=outputs.device, dtype=outputs.dtype)
    given = probe.reshape(outputs.shape).requires_grad_()
    wanted = (2 * probe + 1).to(targets.dtype).reshape(targets.shape)
    moved = torch.cat([wanted[:-1], wanted[-1:] + 5])
    try:
        losses = [objective.mean_loss(given, each) for each in (wanted, wanted.flip(0), moved)]
    except Exception:  # it may take other numbers only
        return False
    if not torch.allclose(losses[0], losses[1], rtol=1e-5):
        return False
    before, after = (torch.autograd.grad(losses[n], given)[0][0] for n in (0, 2))
    return not torch.allclose(before, after, rtol=1e-5)


def try_optimizer(
    model: nn.Module, recipe: Recipe, custom: OptimizerFactory | None, schedule: Schedule | None
) -> None:
    """An error if an optimizer or a schedule of the user's cannot be used."""
    factor = rate_factor(schedule, 1)
    try:
        optimizer(copy.deepcopy(model), recipe, factor, custom)
    except AdaptCLError:
        raise
    except Exception as error:
        raise SettingError(
            f"The optimizer failed on the model's parameters: {_first_line(error)}"
        ) from error


@torch.no_grad()
def try_metrics(objective: Objective, model: nn.Module, samples: Samples) -> None:
    """An error if a metric of the user's fails or gives no number."""
    some = torch.arange(min(_METRIC_SAMPLES, len(samples)), device=samples.device)
    inputs, targets = samples.batch(some)
    outputs = objective.outputs(model, inputs, targets)
    where = f"outputs {shapes_in_words(outputs)} and targets {shapes_in_words(targets)}"
    for name, make in objective.metrics.items():
        metric = make()
        try:
            metric.reset()
            metric = metric.to(samples.device) if hasattr(metric, "to") else metric
            metric.update(outputs, targets)
            value = metric.compute()
        except AdaptCLError:
            raise
        except Exception as error:
            raise SettingError(
                f"The metric {name!r} failed on {where}: {_first_line(error)}"
            ) from error
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            shape = f" of the shape {list(value.shape)}" if isinstance(value, Tensor) else ""
            raise SettingError(
                f"The metric {name!r} gives {describe_type(value)}{shape}, but it must give one "
                "number."
            ) from None


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
