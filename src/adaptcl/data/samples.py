"""Samples: inputs and labels as two tensors that give ready batches.

Data sets here are small enough to live in memory, on the device that trains on them. A batch is
then one gather and one normalisation, without loader processes and without Python per sample.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from adaptcl.errors import DataError, RunFolderError


@dataclass(frozen=True, eq=False)
class Samples:
    """N inputs and their labels.

    `inputs` are uint8 images [N, C, H, W], or floats or int64 numbers (tokens, categories) of any
    shape [N, ...]. `labels` are int64 [N]. `batch` scales images to [0, 1] and then normalises
    them by `mean` and `std` per channel, if these are given.
    """

    inputs: Tensor
    labels: Tensor
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    # Kept beside the inputs, so that a batch moves nothing from host to device.
    scale: Tensor | None = field(init=False, repr=False, default=None)
    shift: Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        _check_labels(self.labels, len(self.inputs))
        _check_normalisation(self.inputs, self.mean, self.std)
        if self.inputs.dtype == torch.uint8:
            scale, shift = scaling(self.inputs.shape[1], self.mean, self.std, self.inputs.device)
            object.__setattr__(self, "scale", scale)
            object.__setattr__(self, "shift", shift)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    def take(self, indexes: Tensor) -> Samples:
        """Only the samples at `indexes`, in that order."""
        indexes = indexes.to(self.labels.device)
        return replace(
            self,
            inputs=self.inputs.index_select(0, indexes),
            labels=self.labels.index_select(0, indexes),
        )

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs at `indexes` as a model takes them, with images as normalised floats; and labels.

        `indexes` are int64 and on the device of the samples, so that nothing waits for a copy.
        """
        # index_select copies whole rows; indexing by a tensor is an order of magnitude slower.
        inputs = self.inputs.index_select(0, indexes)
        labels = self.labels.index_select(0, indexes)
        if self.scale is None or self.shift is None:
            return inputs, labels
        return inputs.float().mul_(self.scale).add_(self.shift), labels

    def to(self, device: torch.device | str) -> Samples:
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training part, a test part and the names of the classes."""

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
            highest = int(samples.labels.max())
            if highest >= len(self.classes):
                raise DataError(
                    f"{self.name}: a {part} label is {highest}, but with {len(self.classes)} "
                    f"classes labels go from 0 to {len(self.classes) - 1}."
                )


def scaling(
    channels: int,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """The factor and the summand that scale uint8 images to [0, 1] and normalise them."""
    means = torch.tensor(mean or (0.0,) * channels, dtype=torch.float64)
    stds = torch.tensor(std or (1.0,) * channels, dtype=torch.float64)
    scale = (1 / (255 * stds)).view(-1, 1, 1).to(device, torch.float32)
    shift = (-means / stds).view(-1, 1, 1).to(device, torch.float32)
    return scale, shift


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images [N, C, H, W], in [0, 1].

    Histograms give exact results for any number of images, without a float copy of them. A
    constant channel gets the deviation 1, so that it can still be normalised.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        counts = torch.bincount(channel.flatten(), minlength=256).double().cpu()
        shares = counts / counts.sum()
        mean = float((shares * levels).sum())
        variance = float((shares * (levels - mean) ** 2).sum())
        means.append(mean)
        stds.append(variance**0.5 if variance > 1e-12 else 1.0)
    return tuple(means), tuple(stds)


def checksums(samples: Samples) -> tuple[int, int]:
    """Checksums of the inputs and of the labels, which identify data without storing it."""
    return _checksum(samples.inputs), _checksum(samples.labels)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)


def _check_inputs(inputs: Tensor) -> None:
    if inputs.ndim == 0 or len(inputs) == 0:
        raise DataError("There are no samples: a data set needs at least one.")
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
    elif not bool((finite := torch.isfinite(inputs)).all()):
        odd = (~finite).flatten(1).any(1) if inputs.ndim > 1 else ~finite
        raise DataError(
            f"Inputs hold NaN or infinite values, in {int(odd.sum())} of {len(inputs)} samples, "
            f"the first of them number {int(odd.int().argmax())}; replace or drop those samples."
        )


def _check_labels(labels: Tensor, count: int) -> None:
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise DataError(
            f"Labels must be one int64 class number a sample, but these are {labels.dtype} of "
            f"the shape {list(labels.shape)}."
        )
    if len(labels) != count:
        raise DataError(f"There are {count} inputs but {len(labels)} labels; both must be equal.")
    lowest = int(labels.min())
    if lowest < 0:
        raise DataError(
            f"Labels must count from 0, but there is a label {lowest}, that of sample "
            f"{int(labels.argmin())}."
        )


def _check_normalisation(
    inputs: Tensor, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> None:
    if mean is None and std is None:
        return
    if mean is None or std is None:
        raise DataError("mean and std go together: give both or neither.")
    if inputs.dtype != torch.uint8:
        raise DataError("mean and std are for uint8 images: normalise float inputs beforehand.")
    channels = inputs.shape[1]
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"Images of {channels} channels need {channels} means and stds, "
            f"but there are {len(mean)} and {len(std)}."
        )
    if min(std) <= 0:
        raise DataError(f"Every std must be above 0, but one is {min(std)}.")


_NUMBERS = (int, float, type(None))
_FIELDS = (
    ("shape", (int,), True),
    ("kind", (str,), False),
    ("mean", _NUMBERS, True),
    ("std", _NUMBERS, True),
    ("classes", (str,), True),
)
"""By field of `Inputs`: the types of its elements, and whether it is a list."""


@dataclass(frozen=True)
class Inputs:
    """The inputs that a model was trained on, for those who train it elsewhere or use it later."""

    shape: tuple[int, ...]
    """Shape of one input."""
    kind: str
    """`uint8` images, `float32` numbers, or `int64` numbers such as tokens."""
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    """Normalisation of images scaled to [0, 1], per channel; None if there is none."""
    classes: tuple[str, ...]
    """Name of the class of each score; empty if classes have no names."""

    @classmethod
    def of(cls, samples: Samples, classes: tuple[str, ...] = ()) -> Inputs:
        kind = str(samples.inputs.dtype).removeprefix("torch.")
        return cls(samples.shape, kind, samples.mean, samples.std, classes)

    def to_json(self) -> dict[str, Any]:
        """The object written to `inputs.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Inputs:
        """Read the object that `to_json` wrote, and refuse anything else."""
        try:
            listed = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
            found = cls(**{**values, **listed})
        except (TypeError, AttributeError) as error:
            raise RunFolderError(f"inputs.json does not describe inputs: {error}") from None
        for name, types, is_list in _FIELDS:
            value = getattr(found, name)
            elements = value if is_list and isinstance(value, tuple) else (value,)
            if not all(type(each) in types for each in elements):
                raise RunFolderError(
                    f"inputs.json does not describe inputs: {name} is {value!r:.50}"
                )
        return found
