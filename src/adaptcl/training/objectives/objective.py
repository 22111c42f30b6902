"""Objectives: what a model is trained for, and by what it is judged.

An objective holds the loss and the metrics of a run. Everything that needs a loss goes through it:
training, the λ of the group lasso, the harm of a pruning, pruning orders by gradients, and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from adaptcl.custom import custom_function
from adaptcl.data.columns import IGNORED, TargetKind
from adaptcl.errors import DataError, SettingError, describe_type
from adaptcl.settings import is_custom
from adaptcl.training.objectives.metrics import (
    HIGHER,
    LOWER,
    Accuracy,
    AveragePrecision,
    Determination,
    Dice,
    MeanAbsolute,
    MeanIoU,
    Measure,
    MetricFactory,
    Perplexity,
    RootMeanSquare,
    as_metric,
)
from adaptcl.units.tensors import Tensors, call_model, each_tensor

Loss = Callable[..., Tensor]
"""A function of outputs and targets: the mean loss, or one loss a sample."""
LOSS = "loss"  # the main metric of an objective without metrics
CLASSES = ("classes", "tokens")  # names of the dimension that has a score for each class
BY_MODEL = "model"  # given as the loss of a model that computes its loss by itself


@dataclass(frozen=True)
class Objective:
    """The loss and the metrics of a run."""

    name: str
    loss: Loss
    metrics: Mapping[str, MetricFactory]
    main: Measure  # the metric that runs are compared by, a key of `metrics` or `loss`
    targets: TargetKind = "any"
    scores: tuple[str, ...] = ()
    """What the dimensions of a model's scores are; empty if they may be anything."""
    is_ready_made: bool = False
    """Whether the loss is one of this file: it changes by nothing else, and takes `reduction`."""
    test_batch: int = 64  # samples in a batch of a test

    @property
    def class_dim(self) -> int | None:
        """The dimension of the scores that has one for each class, if there is one."""
        return next((dim for dim, name in enumerate(self.scores) if name in CLASSES), None)

    @property
    def tested(self) -> list[str]:
        """The names of all metrics that a test gives."""
        return [*self.metrics, *([LOSS] if self.main.name == LOSS else [])]

    @property
    def has_custom_metrics(self) -> bool:
        return not all(isinstance(make, type) for make in self.metrics.values())

    @property
    def is_classification(self) -> bool:
        """Whether the loss is the cross entropy of one label a sample, which has kernels."""
        return self.is_ready_made and self.targets == "labels"

    def outputs(self, model: Callable[..., Any], inputs: Tensors, targets: Tensors) -> Any:
        """What the loss and the metrics get of a model: its output, or the `logits` of it."""
        if self.loss is loss_by_model:
            return call_model(partial(model, labels=targets), inputs)
        return scores_in(call_model(model, inputs), self.is_ready_made)

    def mean_loss(self, outputs: Any, targets: Tensors) -> Tensor:
        """The loss of a batch, as one number."""
        loss = self.loss(outputs, targets)
        return loss.mean() if loss.ndim else loss

    def total_loss(self, outputs: Any, targets: Tensors) -> Tensor:
        """The loss summed over samples: a sample's gradient does not depend on its batch."""
        if self.is_ready_made:
            return self.loss(outputs, targets, reduction="sum")
        loss = self.loss(outputs, targets)
        return loss.sum() if loss.ndim else loss * len(each_tensor(targets)[0])


def scores_in(output: Any, first: bool = False) -> Any:
    """The `logits` of an output that has them, otherwise the output itself.

    With `first`, the first of a tuple: further ones are of no use to a ready-made loss.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    found = getattr(output, "logits", None)
    if found is not None:
        return found
    return output[0] if first and isinstance(output, tuple | list) and output else output


def loss_by_model(outputs: Any, targets: Tensors) -> Tensor:
    """The loss that a model returns, as those of Hugging Face do when they get labels."""
    found = outputs.get(LOSS) if isinstance(outputs, Mapping) else getattr(outputs, LOSS, None)
    if not isinstance(found, Tensor):
        raise SettingError(
            f"loss is 'model', but the model returns {describe_type(outputs)} without a loss."
        )
    return found


def class_loss(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """The cross entropy of one label a sample."""
    return F.cross_entropy(scores, labels, reduction=reduction)


def squared_error(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The squared error; outputs [N, 1] go with targets [N]."""
    return F.mse_loss(_like(outputs, targets), targets, reduction=reduction)


def pixel_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The cross entropy of a class for every pixel; one channel of scores means two classes."""
    if scores.shape[1] == 1:
        wanted = targets.to(scores.dtype).reshape(scores.shape)
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction=reduction)
    return F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction=reduction)


def token_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The cross entropy of the token that follows at every place; scores are [N, T, tokens]."""
    flat = scores.reshape(-1, scores.shape[-1])
    return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction=reduction)


def labels_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The binary cross entropy of several labels a sample, each 0 or 1."""
    return F.binary_cross_entropy_with_logits(scores, _like(targets, scores), reduction=reduction)


def _like(values: Tensor, others: Tensor) -> Tensor:
    """The same numbers in the shape of others; an error where broadcasting would mix samples."""
    if values.shape == others.shape:
        return values
    if len(values) == len(others) and _sizes(values) == _sizes(others):
        return values.reshape(others.shape)
    raise DataError(
        f"The model's outputs and the targets must have one shape, but they have "
        f"{list(values.shape)} and {list(others.shape)}."
    )


def _sizes(tensor: Tensor) -> list[int]:
    """The sizes of a sample, without dimensions of one."""
    return [size for size in tensor.shape[1:] if size > 1]


CLASSIFICATION = Objective(
    name="classification",
    loss=class_loss,
    metrics={"accuracy": Accuracy},
    main=Measure("accuracy", HIGHER),
    targets="labels",
    scores=("samples", "classes"),
    is_ready_made=True,
    test_batch=512,
)
OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        CLASSIFICATION,
        Objective(
            name="regression",
            loss=squared_error,
            metrics={"rmse": RootMeanSquare, "mae": MeanAbsolute, "r2": Determination},
            main=Measure("rmse", LOWER),
            targets="floats",
            is_ready_made=True,
        ),
        Objective(
            name="segmentation",
            loss=pixel_loss,
            metrics={"mean_iou": MeanIoU, "dice": Dice},
            main=Measure("mean_iou", HIGHER),
            targets="classes",
            scores=("samples", "classes", "height", "width"),
            is_ready_made=True,
        ),
        Objective(
            name="language-modelling",
            loss=token_loss,
            metrics={"perplexity": Perplexity},
            main=Measure("perplexity", LOWER),
            targets="tokens",
            scores=("samples", "places", "tokens"),
            is_ready_made=True,
        ),
        Objective(
            name="multi-label",
            loss=labels_loss,
            metrics={"average_precision": AveragePrecision},
            main=Measure("average_precision", HIGHER),
            targets="floats",
            is_ready_made=True,
        ),
    )
}
"""The ready-made objectives by name."""
_DIRECTIONS: Mapping[str, str] = {
    **{name: each.main.better for each in OBJECTIVES.values() for name in each.metrics},
    "r2": HIGHER,
    LOSS: LOWER,
}
"""Which values of known metrics are better."""


def measure_named(objective: str, main_metric: str = "", better: str = "") -> Measure:
    """The main metric of a run with these settings, some of which may be empty."""
    return _measure(main_metric or OBJECTIVES.get(objective, CLASSIFICATION).main.name, better)


def _measure(name: str, better: str = "") -> Measure:
    return Measure(name, better or _DIRECTIONS.get(name, HIGHER))


def find_objective(name: str) -> Objective:
    """A ready-made objective, or what the function `package.module:name` returns."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if not is_custom(name):
        raise SettingError(
            f"objective is {name!r}, but it must be one of {', '.join(OBJECTIVES)}, or your own as "
            "package.module:name."
        )
    made = custom_function(name, "an objective", (), "what custom_objective makes")()
    if not isinstance(made, Objective):
        raise SettingError(
            f"{name} returns {describe_type(made)}, but it must return what "
            "adaptcl.custom_objective(...) makes."
        )
    return made


def custom_objective(
    loss: Any = None, metrics: Mapping[str, Any] | None = None, like: str | None = None
) -> Objective:
    """An objective with your loss and metrics.

    `loss` is a function of outputs and targets, or `"model"` if the model computes it. `metrics`
    are functions of outputs and targets, or objects with `update`, `compute` and `reset`, by name;
    the first is the main one. What is left out comes from the objective that `like` names, and
    so does the form of the targets. Without `like` and without a loss this is classification.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise SettingError(
            f"metrics is {describe_type(metrics)}, but it must be a dictionary of metrics by name."
        )
    if like is None and loss is None:
        like = CLASSIFICATION.name
    found = Objective("custom", class_loss, {}, Measure(LOSS, LOWER))
    if like is not None:
        found = find_objective(like)
    if loss is not None:
        if loss != BY_MODEL and (isinstance(loss, type) or not callable(loss)):
            raise SettingError(
                f"loss is {describe_type(loss)}, but it must be a function of outputs and targets, "
                "or 'model' if the model computes it."
            )
        used = loss_by_model if loss == BY_MODEL else loss
        found = replace(found, loss=used, is_ready_made=False, scores=())
    if metrics:
        made = {str(name): as_metric(name, given) for name, given in metrics.items()}
        first, given = next(iter(metrics.items()))
        higher = getattr(given, "higher_is_better", None)
        better = "" if higher is None else HIGHER if higher else LOWER
        found = replace(found, metrics={**made, **found.metrics}, main=_measure(str(first), better))
    return found


def with_main(objective: Objective, name: str, better: str) -> Objective:
    """The objective with another main metric, or another direction of it; empty changes nothing."""
    if name and name != LOSS and name not in objective.metrics:
        raise SettingError(
            f"main_metric is {name!r}, but there {'is' if len(objective.metrics) == 1 else 'are'} "
            f"only {', '.join([*objective.metrics, LOSS])}."
        )
    main = objective.main if name in ("", objective.main.name) else _measure(name)
    return replace(objective, main=replace(main, better=better or main.better))
