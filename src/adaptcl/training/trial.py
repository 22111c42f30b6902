"""Try an objective on one batch, so that what is wrong with it is said before any training."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError, DataError, SettingError, describe_type
from adaptcl.training.objective import CLASSES, Objective
from adaptcl.units.tensors import Tensors, each_tensor, shapes_in_words

_METRIC_SAMPLES = 256
"""How many test samples a custom metric is tried on: some need all classes."""


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
    # PyTorch only warns here, and then compares every output with every target.
    if any("target size" in str(each.message) for each in caught):
        raise DataError(
            f"The loss got {where}, and would compare outputs with targets of other samples; give "
            "both one shape."
        )
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
    if not bool(torch.isfinite(loss).all()):
        mean = float(loss.detach().mean())
        raise DataError(
            f"The loss of the first batch is {mean} before any training; look at the scale of "
            "inputs and targets."
        )
    return loss


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
