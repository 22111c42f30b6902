"""Samples: inputs and targets that give ready batches.

Most data sets are small enough to live in memory, on the device that trains on them. A batch is
then one gather and one normalisation, without loader processes and without Python per sample.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adaptcl.data.columns import check_inputs, check_normalisation, check_targets
from adaptcl.data.frame_columns import Columns, in_order, orders_of_columns
from adaptcl.errors import DataError
from adaptcl.seeds import process_generators_seeded
from adaptcl.units.tensors import Tensors, each_tensor, mapped, shapes_in_words

Read: TypeAlias = Callable[[list[int]], tuple[Tensors, Any]]
"""Reads the inputs and the targets of the samples with these numbers; the targets may be None."""

SEVERAL = "several tensors"  # the kind of inputs that are a tuple or a dictionary
CHUNK = 256  # samples that are read together when a data set is gone through
_LEAST_PART = 4  # data may take this part of the memory: dealing it to workers copies it


@dataclass(frozen=True, eq=False)
class Items:
    """Inputs of N samples that are read whenever a batch needs them.

    They either would fill too much of the memory, or differ each time they are read, such as images
    with random crops. These draw from a seed made of the numbers of a batch's samples. Every epoch
    of every worker has its own order, drawn from the run's seed. So every epoch sees other crops,
    and the same run always the same ones.
    """

    read: Read
    rows: Tensor  # the numbers of the samples in the data set they are read from
    example: Tensors
    """Inputs of one or two samples. Of whole numbers these are the lowest and the highest."""
    varies: bool = False  # whether a sample differs each time it is read
    checksum: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indexes: Tensor) -> Items:
        return replace(self, rows=self.rows[indexes.cpu()])

    def batch(self, indexes: Tensor) -> tuple[Tensors, Any]:
        rows = self.rows[indexes.cpu()]
        if not self.varies:
            return self.read(rows.tolist())
        with process_generators_seeded(zlib.crc32(rows.numpy().data)):
            return self.read(rows.tolist())

    def chunks(self) -> Iterator[tuple[Tensors, Any]]:
        for begin in range(0, len(self), CHUNK):
            yield self.batch(torch.arange(begin, min(begin + CHUNK, len(self))))

    def noting(self, inputs: Tensors) -> Items:
        """These items, with one more chunk in the checksum and in the example."""
        parts = [self.example, inputs] if each_tensor(self.example) else [inputs]
        whole = any(each.dtype == torch.int64 for each in each_tensor(inputs))
        example = extremes(parts) if whole else mapped(lambda each: each[:2].clone(), parts[0])
        return replace(self, example=example, checksum=_checksum(inputs, self.checksum))


@dataclass(frozen=True, eq=False)
class Samples:
    """N inputs and their targets.

    `inputs` are uint8 images [N, C, H, W], or floats or int64 numbers (tokens, categories) of any
    shape [N, ...], or several such tensors in a tuple or a dictionary. `targets` are class labels,
    int64 [N], or numbers of any shape [N, ...], or several tensors as well. `batch` scales images
    to [0, 1] and then normalises inputs by `mean` and `std` per channel, if these are given.

    If `inputs` are `Items`, a batch has the targets that are read with them; `targets` are those of
    one reading.
    """

    inputs: Any
    targets: Any
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()
    """Names of the classes, if labels were given as names or the data set has some."""
    columns: Columns = field(default_factory=dict)
    """Names of the columns of inputs that came from frames."""
    # Kept beside the inputs, so that a batch moves nothing from host to device.
    scale: Tensor | None = field(init=False, repr=False, default=None)
    shift: Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_inputs(self.example)
        whole = self.inputs if isinstance(self.inputs, Items) else each_tensor(self.example)[0]
        check_targets(self.targets, len(whole))
        check_normalisation(self.example, self.mean, self.std)
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
                f"{shapes_in_words(self.targets)}."
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
        is_read = isinstance(self.inputs, Items)
        inputs = self.inputs.take(indexes) if is_read else _chosen(self.inputs, indexes)
        return replace(self, inputs=inputs, targets=_chosen(self.targets, indexes))

    def aligned(self, first: Samples, whose: str, of: str) -> Samples:
        """The same samples, with the columns of frames in the order that those of `first` have.

        Frames with other columns are refused; `whose` and `of` say whose both samples are.
        """
        orders = orders_of_columns(self.columns, first.columns, whose, of)
        if not orders:
            return self
        inputs = self.inputs
        if isinstance(inputs, Items):
            read, example = inputs.read, in_order(inputs.example, orders)

            def read_in_order(rows: list[int]) -> tuple[Tensors, Any]:
                found, targets = read(rows)
                return in_order(found, orders), targets

            inputs = replace(inputs, read=read_in_order, example=example)
        else:
            inputs = in_order(inputs, orders)
        return replace(self, inputs=inputs, columns=first.columns)

    def in_memory(self) -> Samples:
        """The same samples, with all inputs read now."""
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
    inputs, targets = ([each.inputs for each in parts], [each.targets for each in parts])
    return replace(
        parts[0], inputs=combined(torch.cat, inputs), targets=combined(torch.cat, targets)
    )


def combined(function: Callable[[Any], Tensor], parts: Sequence[Any]) -> Any:
    """The same structure with `function` of each tensor's values in all parts."""
    if isinstance(parts[0], Tensor):
        return function(parts)
    if isinstance(parts[0], Mapping):
        return {name: function([part[name] for part in parts]) for name in parts[0]}
    return tuple(map(function, zip(*parts, strict=True)))


def extremes(parts: Sequence[Tensors]) -> Tensors:
    """For each tensor of the inputs, the samples with its lowest and its highest number."""

    def ends(column: Sequence[Tensor]) -> Tensor:
        low = min(column, key=lambda each: each.min())
        high = max(column, key=lambda each: each.max())
        lowest = low.reshape(len(low), -1).amin(1).argmin()
        highest = high.reshape(len(high), -1).amax(1).argmax()
        return torch.stack([low[int(lowest)].cpu(), high[int(highest)].cpu()])

    found: Tensors = combined(ends, parts)
    return found


def fits_in_memory(size: int) -> bool:
    """Whether data of so many bytes should be kept in memory."""
    return size <= memory() // _LEAST_PART


def memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def checksums(samples: Samples) -> tuple[int, int]:
    """Checksums of the inputs and of the targets, which identify data without storing it."""
    inputs = samples.inputs
    found = inputs.checksum if isinstance(inputs, Items) else _checksum(inputs)
    return found, _checksum(samples.targets)


def _checksum(tensors: Tensors, before: int = 0) -> int:
    for tensor in each_tensor(tensors):
        bytes_ = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data
        before = zlib.crc32(bytes_, before)
    return before


# Data sets --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training part, a test part and the names of the classes, if targets are classes."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        test = self.test.aligned(self.train, f"{self.name}: the test part", "the training part")
        object.__setattr__(self, "test", test)
        if self.train.shape != self.test.shape:
            raise DataError(
                f"{self.name}: training inputs have the shape {list(self.train.shape)} but test "
                f"inputs {list(self.test.shape)}; both must be equal."
            )
        for part, samples in (("training", self.train), ("test", self.test)):
            if self.classes and (highest := int(samples.labels.max())) >= len(self.classes):
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


def without_test_part(name: str, missing: str = "") -> DataError:
    """The error where a data set lacks a test part that is needed."""
    return DataError(
        f"{name} has no test part{missing and f' ({missing})'}; add it, or set holdout, the share "
        "of its samples that each worker holds back."
    )


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


# Normalisation ----------------------------------------------------------------------------------


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


def channel_statistics(images: Tensor | Items) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 images [N, C, H, W], in [0, 1].

    Histograms give exact results for any number of images, without a float copy of them. A
    constant channel gets the deviation 1, so that it can still be normalised.
    """
    chunks: Any = [images]
    if isinstance(images, Items):
        chunks = (inputs for inputs, _ in images.chunks())
    histograms: Any = sum(torch.stack([_histogram(c) for c in chunk.unbind(1)]) for chunk in chunks)
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for counts in histograms.double():
        shares = counts / counts.sum()
        mean = float((shares * levels).sum())
        variance = float((shares * (levels - mean) ** 2).sum())
        means.append(mean)
        stds.append(variance**0.5 if variance > 1e-12 else 1.0)
    return tuple(means), tuple(stds)


def _histogram(channel: Tensor) -> Tensor:
    return torch.bincount(channel.flatten(), minlength=256).cpu()
