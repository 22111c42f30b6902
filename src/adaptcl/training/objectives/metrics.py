"""Metrics: what a test measures beside the loss, batch by batch.

A metric has `update(outputs, targets)`, `compute()` and `reset()`, as those of torchmetrics have.
A plain function of all outputs and all targets is made one by `Gathered`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptcl.data.columns import IGNORED
from adaptcl.errors import SettingError, describe_type, suggest_instance

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True)
class Measure:
    """The name of a metric, and how its values are compared and written."""

    name: str = "accuracy"
    better: str = HIGHER  # which values are better, `higher` or `lower` ones

    @property
    def label(self) -> str:
        """The name as tables and figures write it."""
        return _LABELS.get(self.name, self.name.replace("_", " "))

    @property
    def in_percent(self) -> bool:
        """Whether it is a share of something, which people read in per cent."""
        return self.name in _SHARES

    @property
    def worst(self) -> float:
        return -math.inf if self.better == HIGHER else math.inf

    def write(self, value: float, digits: int = 1) -> str:
        """A value as people read it; `digits` is for per cent."""
        if self.in_percent:
            return f"{100 * value:.{digits}f} %"
        return f"{value:#.4g}".removesuffix(".")  # with its zeros: as many digits in every line

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.better == HIGHER else value < than

    def gain(self, value: float, over: float) -> float:
        """How much better a value is than another; negative if it is worse."""
        return value - over if self.better == HIGHER else over - value


_LABELS: Mapping[str, str] = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "mean_iou": "mean IoU",
    "dice": "Dice",
}
_SHARES = frozenset({"accuracy", "mean_iou", "dice", "average_precision"})


class Metric(Protocol):
    """Collects one number over the batches of a test."""

    def update(self, outputs: Any, targets: Any, /) -> None: ...

    def compute(self) -> Any: ...

    def reset(self) -> None: ...


MetricFactory = Callable[[], Metric]


def as_metric(name: str, given: Any) -> MetricFactory:
    """A user's metric: an object with `update`, `compute` and `reset`, or a function."""
    if isinstance(given, type):
        raise SettingError(
            f"The metric {name!r} is {describe_type(given)}, but it must be an instance"
            f"{suggest_instance(given)}."
        )
    if all(callable(getattr(given, each, None)) for each in ("update", "compute", "reset")):
        return lambda: copy.deepcopy(given)
    if not callable(given):
        raise SettingError(
            f"The metric {name!r} is {describe_type(given)}, but it must be a function of outputs "
            "and targets, or have update, compute and reset."
        )
    return lambda: Gathered(given)


class Gathered:
    """A function of all outputs and all targets of a test."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._outputs: list[Any] = []
        self._targets: list[Any] = []

    def update(self, outputs: Any, targets: Any, /) -> None:
        self._outputs.append(outputs)
        self._targets.append(targets)

    def compute(self) -> Any:
        return self._function(_together(self._outputs), _together(self._targets))


def merged_value(
    make: MetricFactory | None, values: Sequence[float | None], weights: Sequence[float]
) -> float:
    """The mean of a metric over several tests; tests without a value do not count.

    What is averaged is the mean inside a metric: of squares for the RMSE, of losses for the
    perplexity. NaN if no test has a value.
    """
    inner, outer = _MEANS_INSIDE.get(make, (float, float)) if make else (float, float)
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(weight for _, weight in known)
    return outer(sum(inner(v) * w for v, w in known) / total) if total else math.nan


def _together(parts: list[Any]) -> Any:
    """The batches of a test as one, in the structure of each."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {name: _together([each[name] for each in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_together(list(each)) for each in zip(*parts, strict=True))
    return parts  # whatever it is, the function knows


class _Collecting:
    """What the shipped metrics share: a new one has seen nothing, as one that was reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        raise NotImplementedError


class Accuracy(_Collecting):
    """The share of samples whose label gets the highest score, also class by class."""

    def reset(self) -> None:
        self._right: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, scores: Tensor, labels: Tensor, /) -> None:
        # Without a sum, a GPU does not wait.
        self._right.append(scores.argmax(1) == labels)
        self._labels.append(labels)

    def compute(self) -> float:
        right = torch.cat(self._right)
        return int(right.sum()) / len(right)

    def by_class(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """How many samples of each class were recognised, and how many there are."""
        right, labels = torch.cat(self._right), torch.cat(self._labels)
        samples = torch.bincount(labels)
        recognised = torch.bincount(labels[right], minlength=len(samples))
        return tuple(recognised.tolist()), tuple(samples.tolist())


class _Errors(_Collecting):
    """Sums over the errors of a regression, in double precision."""

    def reset(self) -> None:
        self.count = 0
        self.squares: Any = 0.0
        self.absolutes: Any = 0.0
        self.values: Any = 0.0
        self.square_values: Any = 0.0

    def update(self, outputs: Tensor, targets: Tensor, /) -> None:
        outputs, targets = outputs.double().reshape(targets.shape), targets.double()
        errors = outputs - targets
        self.count += targets.numel()
        self.squares += errors.square().sum()
        self.absolutes += errors.abs().sum()
        self.values += targets.sum()
        self.square_values += targets.square().sum()


class RootMeanSquare(_Errors):
    """RMSE: the root of the mean squared error."""

    def compute(self) -> float:
        return math.sqrt(float(self.squares) / self.count)


class MeanAbsolute(_Errors):
    """MAE: the mean absolute error."""

    def compute(self) -> float:
        return float(self.absolutes) / self.count


class Determination(_Errors):
    """R²: the share of the targets' variance that is explained."""

    def compute(self) -> float:
        spread = float(self.square_values) - float(self.values) ** 2 / self.count
        return 1 - float(self.squares) / spread if spread > 0 else math.nan


class _Confusion(_Collecting):
    """How many pixels of each class were taken for each class."""

    def reset(self) -> None:
        self._counts: Tensor | None = None

    def update(self, scores: Tensor, targets: Tensor, /) -> None:
        # One channel of scores tells foreground from background.
        found = (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)
        classes = max(2, scores.shape[1])
        found, targets = found.flatten(), targets.flatten()
        counted = targets != IGNORED
        pairs = classes * targets[counted] + found[counted]
        counts = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
        self._counts = counts if self._counts is None else self._counts + counts

    def _hits(self) -> tuple[Tensor, Tensor, Tensor]:
        """By class that occurs: pixels found and true, pixels found, pixels true."""
        assert self._counts is not None
        counts = self._counts.double()
        hits, found, true = counts.diagonal(), counts.sum(0), counts.sum(1)
        occurs = found + true > 0
        return hits[occurs], found[occurs], true[occurs]


class MeanIoU(_Confusion):
    """Intersection over union, averaged over the classes that occur."""

    def compute(self) -> float:
        hits, found, true = self._hits()
        return float((hits / (found + true - hits)).mean())


class Dice(_Confusion):
    """Twice the intersection over the sum of both areas, averaged over the classes that occur."""

    def compute(self) -> float:
        hits, found, true = self._hits()
        return float((2 * hits / (found + true)).mean())


class Perplexity(_Collecting):
    """The exponential of the mean loss of a token."""

    def reset(self) -> None:
        self._loss: Any = 0.0
        self._tokens: Any = 0

    def update(self, scores: Tensor, targets: Tensor, /) -> None:
        flat, wanted = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1)
        loss = F.cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="sum")
        self._loss += loss.double()
        self._tokens += (wanted != IGNORED).sum()

    def compute(self) -> float:
        mean = float(self._loss) / max(1, int(self._tokens))
        return math.exp(mean) if mean < 700 else math.inf


class AveragePrecision(Gathered):
    """The area under precision over recall, averaged over the labels that occur."""

    def __init__(self) -> None:
        super().__init__(_mean_average_precision)


def _mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    scores, true = scores.float(), targets > 0.5
    found = [
        _average_precision(scores[:, label], true[:, label])
        for label in range(true.shape[1])
        if bool(true[:, label].any())
    ]
    return sum(found) / len(found) if found else math.nan


def _average_precision(scores: Tensor, true: Tensor) -> float:
    order = scores.argsort(descending=True, stable=True)
    scores, hits = scores[order], true[order].double()
    found = hits.cumsum(0)
    ranks = torch.arange(1, len(hits) + 1, device=hits.device)
    # Samples of equal scores are found together.
    last = torch.ones_like(true)
    last[:-1] = scores[1:] != scores[:-1]
    precision, recall = (found / ranks)[last], found[last]
    gained = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((gained * precision).sum() / found[-1])


_MEANS_INSIDE: Mapping[MetricFactory, tuple[Callable[[float], float], Callable[[float], float]]] = {
    RootMeanSquare: (lambda value: value * value, math.sqrt),
    Perplexity: (math.log, math.exp),
}
"""By metric that is a function of a mean: how to get to the mean, and back."""
