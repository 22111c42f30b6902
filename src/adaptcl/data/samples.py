"""Samples: inputs and targets that give ready batches.

Most data sets are small enough to live in memory, on the device that trains on them. A batch is
then one gather and one normalisation, without loader processes and without Python per sample. The
inputs of others are read as they are needed (`items.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from adaptcl.data.items import Items, checksum_of
from adaptcl.errors import DataError
from adaptcl.units.tensors import Tensors, each_tensor, mapped

SEVERAL = "several tensors"  # the kind of inputs that are a tuple or a dictionary


@dataclass(frozen=True, eq=False)
class Samples:
    """N inputs and their targets.

    `inputs` are uint8 images [N, C, H, W], or floats or int64 numbers (tokens, categories) of any
    shape [N, ...], or several such tensors in a tuple or a dictionary. `targets` are class labels,
    int64 [N], or numbers of any shape [N, ...], or several tensors as well. `batch` scales images
    to [0, 1] and then normalises inputs by `mean` and `std` per channel, if these are given.

    `inputs` may also be `Items`, which are read when a batch needs them. What comes along as their
    targets then counts in place of `targets`, which are those of one reading.
    """

    inputs: Any
    targets: Any
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()
    """Names of the classes, if labels were given as names or the data set has some."""
    # Kept beside the inputs, so that a batch moves nothing from host to device.
    scale: Tensor | None = field(init=False, repr=False, default=None)
    shift: Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        example = self.example
        check_inputs(example)
        whole = self.inputs if isinstance(self.inputs, Items) else each_tensor(example)[0]
        _check_targets(self.targets, len(whole))
        _check_normalisation(example, self.mean, self.std)
        if self.kind == "uint8" or self.mean is not None:
            scale, shift = scaling(self.shape, self.kind, self.mean, self.std, self.device)
            object.__setattr__(self, "scale", scale)
            object.__setattr__(self, "shift", shift)

    def __len__(self) -> int:
        return len(each_tensor(self.targets)[0])

    @property
    def device(self) -> torch.device:
        return each_tensor(self.targets)[0].device

    @property
    def example(self) -> Any:
        """The inputs, or some of them if they are not in memory, as they are stored."""
        return self.inputs.example if isinstance(self.inputs, Items) else self.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input; empty if an input is several tensors."""
        return tuple(self.example.shape[1:]) if isinstance(self.example, Tensor) else ()

    @property
    def kind(self) -> str:
        """The type of the inputs: `uint8`, `float32`, `int64` or another, or `several tensors`."""
        if not isinstance(self.example, Tensor):
            return SEVERAL
        return str(self.example.dtype).removeprefix("torch.")

    @property
    def labels(self) -> Tensor:
        """The targets of samples that have a class each; an error if they have none."""
        if not isinstance(self.targets, Tensor) or not self.has_labels:
            raise DataError(
                f"Labels must be one int64 class number a sample, but these are "
                f"{described_targets(self.targets)}."
            )
        return self.targets

    @property
    def has_labels(self) -> bool:
        """Whether every target is one class number."""
        targets = self.targets
        return isinstance(targets, Tensor) and targets.dtype == torch.int64 and targets.ndim == 1

    def take(self, indexes: Tensor) -> Samples:
        """Only the samples at `indexes`, in that order."""
        indexes = indexes.to(self.device)
        targets = _chosen(self.targets, indexes)
        if isinstance(self.inputs, Items):
            return replace(self, inputs=self.inputs.take(indexes), targets=targets)
        return replace(self, inputs=_chosen(self.inputs, indexes), targets=targets)

    def in_memory(self) -> Samples:
        """The same samples, with inputs that are read on demand read now."""
        if not isinstance(self.inputs, Items):
            return self
        inputs, targets = self.stored(torch.arange(len(self), device=self.device))
        return replace(self, inputs=inputs, targets=targets)

    def batch(self, indexes: Tensor) -> tuple[Any, Any]:
        """Inputs at `indexes` as a model takes them, with images as normalised floats; and targets.

        Both have the structure of the samples. `indexes` are int64 and on the device of the
        samples, so that nothing waits for a copy.
        """
        inputs, targets = self.stored(indexes)
        if self.scale is None or self.shift is None or not isinstance(inputs, Tensor):
            return inputs, targets
        return inputs.float().mul_(self.scale).add_(self.shift), targets

    def stored(self, indexes: Tensor) -> tuple[Any, Any]:
        """Inputs at `indexes` as they are stored, with images as uint8; and targets."""
        if not isinstance(self.inputs, Items):
            return _chosen(self.inputs, indexes), _chosen(self.targets, indexes)
        inputs, targets = self.inputs.batch(indexes)
        wanted = _chosen(self.targets, indexes) if targets is None else _on(targets, self.device)
        return _on(inputs, self.device), wanted

    def to(self, device: torch.device | str) -> Samples:
        inputs = self.inputs if isinstance(self.inputs, Items) else _on(self.inputs, device)
        return replace(self, inputs=inputs, targets=_on(self.targets, device))


def _chosen(tensors: Tensors, indexes: Tensor) -> Tensors:
    # index_select copies whole rows; indexing by a tensor is an order of magnitude slower.
    return mapped(lambda each: each.index_select(0, indexes), tensors)


def _on(tensors: Tensors, device: torch.device | str) -> Tensors:
    return mapped(lambda each: each.to(device), tensors)


def joined(parts: Sequence[Samples]) -> Samples:
    """All samples of several parts of one data set, in memory."""
    parts = [each.in_memory() for each in parts]
    return replace(
        parts[0],
        inputs=joined_tensors([each.inputs for each in parts]),
        targets=joined_tensors([each.targets for each in parts]),
    )


def joined_tensors(parts: Sequence[Tensors]) -> Tensors:
    """The same structure with all samples of each tensor."""
    columns = [torch.cat(each) for each in zip(*map(each_tensor, parts), strict=True)]
    if isinstance(parts[0], Tensor):
        return columns[0]
    if isinstance(parts[0], Mapping):
        return dict(zip(parts[0], columns, strict=True))
    return tuple(columns)


def described_targets(targets: Tensors) -> str:
    """Type and shape in words, for error messages."""
    if isinstance(targets, Tensor):
        return f"{targets.dtype} of the shape {list(targets.shape)}"
    return f"{len(each_tensor(targets))} tensors"


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training part, a test part and the names of the classes, if targets are classes."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.train.shape != self.test.shape:
            raise DataError(
                f"{self.name}: training inputs have the shape {list(self.train.shape)} but test "
                f"inputs {list(self.test.shape)}; both must be equal."
            )
        for part, samples in (("training", self.train), ("test", self.test)):
            if not self.classes:
                continue
            highest = int(samples.labels.max())
            if highest >= len(self.classes):
                raise DataError(
                    f"{self.name}: a {part} label is {highest}, but with {len(self.classes)} "
                    f"classes labels go from 0 to {len(self.classes) - 1}."
                )

    @classmethod
    def of(cls, name: str, train: Samples, test: Samples, *, has_classes: bool) -> DataSet:
        """A data set of these parts. Classes without names get their numbers as names."""
        if not has_classes:
            return cls(name, train, test, ())
        train, test = with_common_classes([train, test])
        count = 1 + int(max(train.labels.max(), test.labels.max()))
        return cls(name, train, test, train.classes or tuple(map(str, range(count))))

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample, or for each of its places."""
        if self.classes:
            return len(self.classes)
        first = each_tensor(self.train.targets)[0]
        if first.is_floating_point():
            return 1 if first.ndim == 1 else int(first.shape[1])
        return 1 + max(int(each_tensor(part.targets)[0].max()) for part in (self.train, self.test))


def scaling(
    shape: tuple[int, ...],
    kind: str,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """The factor and the summand that normalise inputs, after scaling uint8 images to [0, 1]."""
    means = torch.tensor(mean or (0.0,) * shape[0], dtype=torch.float64)
    stds = torch.tensor(std or (1.0,) * shape[0], dtype=torch.float64)
    by_channel = (-1, *(1 for _ in shape[1:]))
    largest = 255 if kind == "uint8" else 1
    scale = (1 / (largest * stds)).view(by_channel).to(device, torch.float32)
    shift = (-means / stds).view(by_channel).to(device, torch.float32)
    return scale, shift


def with_common_classes(parts: Sequence[Samples]) -> list[Samples]:
    """Parts of one data set, with one number for each class that they name.

    A part may lack classes that others have, and then numbers the rest in another way. Labels of a
    part without names stay as they are.
    """
    named = [each.classes for each in parts if each.classes]
    if all(each == named[0] for each in named):
        names = named[0] if named else ()
    else:
        names = tuple(sorted({name for each in named for name in each}))
    return [renumbered(each, names) for each in parts]


def renumbered(samples: Samples, names: tuple[str, ...]) -> Samples:
    """The samples with labels that count the classes in the order of `names`."""
    if not names or samples.classes == names:
        return samples
    if not samples.classes:
        return replace(samples, classes=names)
    places = {name: place for place, name in enumerate(names)}
    unknown = next((name for name in samples.classes if name not in places), None)
    if unknown is not None:
        raise DataError(f"A label is {unknown!r}, which is none of the classes.")
    table = torch.tensor([places[name] for name in samples.classes], device=samples.device)
    return replace(samples, targets=table[samples.labels], classes=names)


def channel_statistics(images: Tensor | Items) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images [N, C, H, W], in [0, 1].

    Histograms give exact results for any number of images, without a float copy of them. A
    constant channel gets the deviation 1, so that it can still be normalised.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    if isinstance(images, Items):
        histograms = sum(_histograms(each_tensor(inputs)[0]) for inputs, _ in images.chunks())
    else:
        histograms = _histograms(images)
    means, stds = [], []
    for counts in torch.as_tensor(histograms).double():
        shares = counts / counts.sum()
        mean = float((shares * levels).sum())
        variance = float((shares * (levels - mean) ** 2).sum())
        means.append(mean)
        stds.append(variance**0.5 if variance > 1e-12 else 1.0)
    return tuple(means), tuple(stds)


def _histograms(images: Tensor) -> Tensor:
    channels = [torch.bincount(each.flatten(), minlength=256).cpu() for each in images.unbind(1)]
    return torch.stack(channels)


def checksums(samples: Samples) -> tuple[int, int]:
    """Checksums of the inputs and of the targets, which identify data without storing it."""
    inputs = samples.inputs
    found = inputs.checksum if isinstance(inputs, Items) else checksum_of(inputs)
    return found, checksum_of(samples.targets)


def check_inputs(inputs: Tensors) -> None:
    """An error if a model cannot be trained on these."""
    tensors = each_tensor(inputs)
    if not tensors or any(each.ndim == 0 or len(each) == 0 for each in tensors):
        raise DataError("There are no samples: a data set needs at least one.")
    if isinstance(inputs, Tensor):
        _check_input(inputs)
        return
    if len({len(each) for each in tensors}) > 1:
        counts = ", ".join(str(len(each)) for each in tensors)
        raise DataError(f"The tensors of the inputs have {counts} samples; all must be equal.")
    for each in tensors:
        if each.dtype == torch.uint8:
            raise DataError(
                "uint8 inputs are scaled only if they are the only inputs; convert them to float."
            )
        if each.dtype != torch.bool:  # a mask
            _check_input(each)


def _check_input(inputs: Tensor) -> None:
    if inputs.dtype == torch.uint8:
        if inputs.ndim != 4:
            raise DataError(
                f"uint8 inputs are taken for images [N, C, H, W], but these have the shape "
                f"{list(inputs.shape)}; reshape them, or convert them to float."
            )
    elif inputs.dtype == torch.int64:
        return
    elif not inputs.dtype.is_floating_point:
        raise DataError(
            f"Inputs must be uint8 images, floats, or int64 numbers such as tokens, but these are "
            f"{inputs.dtype}."
        )
    elif (odd := _not_finite(inputs)) is not None:
        raise DataError(
            f"Inputs hold NaN or infinite values, in {int(odd.sum())} of {len(inputs)} samples, "
            f"the first of them number {int(odd.int().argmax())}; replace or drop those samples."
        )


def _not_finite(tensor: Tensor) -> Tensor | None:
    """Which samples hold a number that is not finite; None if there is none."""
    finite = torch.isfinite(tensor)
    return None if bool(finite.all()) else ~finite.flatten(1).all(1) if finite.ndim > 1 else ~finite


def _check_targets(targets: Tensors, count: int) -> None:
    for each in each_tensor(targets):
        if each.ndim == 0 or len(each) != count:
            number = len(each) if each.ndim else 1
            raise DataError(f"There are {count} inputs but {number} labels; both must be equal.")
        if each.is_floating_point():
            if (odd := _not_finite(each)) is not None:
                raise DataError(
                    f"Targets hold NaN or infinite values, in {int(odd.sum())} of {count} samples; "
                    "replace or drop those samples."
                )
        elif each.dtype not in (torch.int64, torch.bool):
            raise DataError(f"Targets must be int64 or floats, but these are {each.dtype}.")
    if isinstance(targets, Tensor) and targets.dtype == torch.int64 and targets.ndim == 1:
        _check_labels(targets)


_MOST_CLASSES = 2**16
_GAPS = 100  # numbers for each class that occurs, above which labels cannot be class numbers


def _check_labels(labels: Tensor) -> None:
    lowest = int(labels.min())
    if lowest < 0:
        raise DataError(
            f"Labels must count from 0, but there is a label {lowest}, that of sample "
            f"{int(labels.argmin())}."
        )
    highest = int(labels.max())
    # A model has a score for every number, so one wrong label could cost gigabytes.
    if highest >= _MOST_CLASSES and highest > _GAPS * (distinct := len(torch.unique(labels))):
        raise DataError(
            f"Labels must count from 0, but there is a label {highest:,}, that of sample "
            f"{int(labels.argmax())}, and only {distinct:,} different ones; number the classes "
            "from 0, or give labels as names."
        )


def _check_normalisation(
    inputs: Tensors, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> None:
    if mean is None and std is None:
        return
    if mean is None or std is None:
        raise DataError("mean and std go together: give both or neither.")
    if not isinstance(inputs, Tensor) or inputs.dtype == torch.int64 or inputs.ndim < 2:
        raise DataError("mean and std are for images, and for floats that have channels.")
    channels = inputs.shape[1]
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"Images of {channels} channels need {channels} means and stds, "
            f"but there are {len(mean)} and {len(std)}."
        )
    if min(std) <= 0:
        raise DataError(f"Every std must be above 0, but one is {min(std)}.")
