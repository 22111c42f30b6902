"""Custom data: turning what PyTorch users have into `Samples`.

That is a pair (inputs, targets) of tensors, arrays, lists or pandas frames, a dictionary of them,
or a data set with a length and items, as torchvision and Hugging Face make them. What the targets
are depends on what is learned: class labels, numbers, the classes of all pixels, or the tokens that
follow. The objective of a run says which.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from adaptcl.data.columns import (
    TargetKind,
    check_inputs,
    column,
    described,
    is_array,
    is_frame,
    is_listed,
    is_readable,
    is_stored,
    is_structure,
    ready,
    structure,
    typed_targets,
)
from adaptcl.data.frame_columns import (
    TARGET_NAMES,
    columns_of,
    inputs_and_target,
    without_target,
)
from adaptcl.data.labels import labels_of
from adaptcl.data.samples import CHUNK, Items, Samples, combined, fits_in_memory
from adaptcl.errors import DataError, listed
from adaptcl.seeds import process_generators_seeded
from adaptcl.units.tensors import Tensors, each_tensor, mapped, shapes_in_words

Collate: TypeAlias = Callable[[list[Any]], Any]
"""Makes one batch of a list of samples, as that of a DataLoader does."""

_NUMBER_NAMES = ("index", "idx", "id")
"""What a dictionary may call the number of a sample, which is no input."""
_ASKED = 16  # samples that are read twice, to see whether they differ each time


def as_samples(
    source: Any, targets: TargetKind = "labels", collate: Collate | None = None
) -> Samples:
    """Make Samples of a pair (inputs, targets), a dictionary, a frame, or a data set.

    `collate` makes one batch of all samples; it can pad those of different lengths.
    """
    if isinstance(source, Samples):
        if targets in ("labels", "any"):
            return source
        return replace(source, targets=typed_targets(source.targets, targets))
    if collate is not None:
        is_pair = isinstance(source, tuple) and len(source) == 2
        return _from_items([*zip(*source, strict=True)] if is_pair else source, targets, collate)
    whole = _inputs_and_targets(source, targets)
    if whole is not None:
        return _from_arrays(*whole, targets)
    given = described(source)
    if is_array(source):
        raise DataError(f"There are inputs ({given}) but no labels; give a pair (inputs, labels).")
    if hasattr(source, "dataset") and hasattr(source, "batch_size"):
        raise DataError(
            f"{given[0].upper()}{given[1:]} makes batches, which the setting batch_size does here; "
            "give its data set, that is its attribute `dataset`."
        )
    is_data_set = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if is_data_set and not isinstance(source, str | bytes):
        return _from_items(source, targets, None)
    raise DataError(
        f"{given[0].upper()}{given[1:]} cannot be read as samples; give a pair (inputs, labels) of "
        "tensors or arrays, or a data set with __len__ and __getitem__."
    )


def as_example(inputs: Any, like: Tensor | None = None) -> Tensors:
    """Inputs without targets as a model takes them, with the device and the precision of `like`.

    Of a frame the column of the targets is left out.
    """
    if is_frame(inputs):
        inputs = without_target(inputs)
    made, _ = ready(structure(inputs), None, "labels")
    check_inputs(made)
    count = torch.arange(len(each_tensor(made)[0]))
    example: Tensors = Samples(made, torch.zeros_like(count)).batch(count)[0]
    if like is None:
        return example
    device, precision = like.device, like.dtype
    return mapped(
        lambda each: each.to(device, precision if each.is_floating_point() else each.dtype), example
    )


def part_as_samples(
    name: str, part: Any, targets: TargetKind, collate: Collate | None = None
) -> Samples:
    """Make Samples of one part of a data set; an error names the part."""
    try:
        return as_samples(part, targets, collate)
    except DataError as error:
        raise DataError(f"{name} cannot be used: {error}") from error


def begins_a_data_set(item: Any) -> bool:
    """Whether a list that begins with this item is one data set, not one for each worker.

    One data set begins with all inputs, or with one sample: a dictionary, or (input, label).
    """
    if isinstance(item, Mapping) or is_array(item):
        return True
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        return False
    return isinstance(item[1], int | float | str) or getattr(item[1], "ndim", None) == 0


# Whole arrays ------------------------------------------------------------------------------------


def _inputs_and_targets(source: Any, kind: TargetKind) -> tuple[Any, Any] | None:
    """All inputs and all targets, if that is what is given; None for samples one by one."""
    if is_frame(source):
        return inputs_and_target(source)
    if isinstance(source, Mapping):
        return _split(source, kind)
    if kind == "tokens" and is_array(source):
        return source, source
    if not isinstance(source, tuple | list) or len(source) != 2:
        return None
    inputs, targets = source[0], _as_series(source[1])
    if isinstance(targets, tuple) and is_structure(targets) and not is_listed(inputs):
        return inputs, targets
    scalars = int | float | str | np.generic | None  # None where a value is missing
    are_scalars = is_listed(targets) and targets and all(isinstance(t, scalars) for t in targets)
    if not (is_array(targets) or is_frame(targets) or isinstance(targets, Mapping) or are_scalars):
        return None
    if is_array(inputs) or is_frame(inputs) or isinstance(inputs, Mapping):
        return inputs, targets
    # A list may have an array for each sample, or several inputs of all samples.
    count = len(targets)
    if is_structure(inputs) and (
        len(inputs) != count or all(each.ndim and len(each) == count for each in inputs)
    ):
        return inputs, targets
    if is_listed(inputs) and len(inputs) == count and all(map(is_readable, inputs)):
        return column(inputs), targets
    return None


def _as_series(targets: Any) -> Any:
    """The only column of a frame of targets; anything else as it is."""
    is_alone = is_frame(targets) and len(targets.columns) == 1
    return targets[targets.columns[0]] if is_alone else targets


def _from_arrays(inputs: Any, targets: Any, kind: TargetKind) -> Samples:
    """Samples of whole arrays; those on disk stay there."""
    leaves: list[Any] = []
    structure(inputs, leaves.append)
    samples = _from_leaves(leaves, inputs, targets, kind)
    columns = columns_of(samples.example, leaves)
    return replace(samples, columns=columns) if columns else samples


def _from_leaves(leaves: list[Any], inputs: Any, targets: Any, kind: TargetKind) -> Samples:
    if not any(map(is_stored, leaves)):
        return _samples(*ready(structure(inputs), targets, kind), kind)

    def read(rows: list[int]) -> tuple[Tensors, Any]:
        chosen = partial(_rows_of, rows=rows)
        return ready(structure(structure(inputs, chosen)), structure(targets, chosen), kind)

    count = len(leaves[0])
    wanted: list[Any] = []
    structure(targets, wanted.append)
    for each in [*leaves, *wanted]:
        if len(each) != count:
            raise DataError(f"There are {count} inputs but {len(each)} labels; both must be equal.")
    return _read_as_needed(Items(read, torch.arange(count), ()), kind)


def _rows_of(array: Any, rows: list[int]) -> Any:
    if isinstance(array, Tensor):
        return array[rows]
    if is_stored(array):
        # Files of HDF5 are read only in ascending order.
        ascending, places = np.unique(rows, return_inverse=True)
        return np.asarray(array[ascending])[places]
    return [array[row] for row in rows] if is_listed(array) else np.asarray(array)[rows]


def _split(whole: Mapping[str, Any], kind: TargetKind) -> tuple[Any, Any]:
    """Inputs and targets of a dictionary of both; the tokens of a text are their own targets."""
    inputs = {key: value for key, value in whole.items() if key not in _NUMBER_NAMES}
    name = next((each for each in TARGET_NAMES if each in inputs), None)
    if name is not None:
        targets = inputs.pop(name)
        return inputs, targets
    if kind == "tokens" and "input_ids" in whole:
        return inputs, whole["input_ids"]
    raise DataError(
        f"The dictionary has {listed(map(repr, whole))}, but no 'labels'; give it the targets by "
        "that name."
    )


# Samples one by one ------------------------------------------------------------------------------


def _from_items(source: Any, kind: TargetKind, collate: Collate | None) -> Samples:
    count = len(source)
    if count == 0:
        raise DataError("There are no samples: a data set needs at least one.")
    read = _ItemReader(source, kind, collate)
    varies = not isinstance(source, list | tuple) and _varies(read, count)
    names = class_names(source)
    if varies or not fits_in_memory(count * sum(t.nbytes for t in each_tensor(read([0])[0]))):
        return _read_as_needed(Items(read, torch.arange(count), (), varies), kind, names)
    return _samples(*read(list(range(count))), kind, names)


class _ItemReader:
    """Reads samples of a data set, as inputs and targets in their final form; labels as a list."""

    def __init__(self, source: Any, kind: TargetKind, collate: Collate | None) -> None:
        self._source = source
        self._kind = kind
        self._collate = collate
        self._lock = threading.Lock()  # workers read in threads, and a data set may hold a file
        self._first: tuple[Tensors, Any] | None = None

    def __call__(self, rows: list[int]) -> tuple[Tensors, Any]:
        with self._lock:
            several = getattr(self._source, "__getitems__", None)  # as PyTorch's DataLoader asks
            if several is not None and len(rows) > 1:
                items = list(several(rows))
            else:
                items = [self._source[row] for row in rows]
            if self._collate is not None:
                return ready(*_collated(items, self._collate, self._kind), self._kind)
        pairs = [_one_sample(item, row, self._kind) for item, row in zip(items, rows, strict=True)]
        self._first = self._first or pairs[0]
        for row, pair in zip(rows, pairs, strict=True):
            self._check_like_first(row, *pair)
        inputs, targets = (list(each) for each in zip(*pairs, strict=True))
        wanted = targets if self._kind == "labels" else combined(torch.stack, targets)
        return ready(combined(torch.stack, inputs), wanted, self._kind)

    def _check_like_first(self, row: int, value: Tensors, target: Any) -> None:
        first, wanted = self._first or (value, target)
        if _shapes(value) != _shapes(first):
            raise DataError(
                f"Sample {row} is {shapes_in_words(value)}, but sample 0 is "
                f"{shapes_in_words(first)}; all must be equal."
            )
        if self._kind != "labels" and _shapes(target) != _shapes(wanted):
            raise DataError(
                f"The target of sample {row} is {shapes_in_words(target)}, but that of sample 0 is "
                f"{shapes_in_words(wanted)}; all must be equal, or give a collate that pads them."
            )


def _collated(items: Sequence[Any], collate: Collate, kind: TargetKind) -> tuple[Tensors, Any]:
    made = collate(list(items))
    if isinstance(made, Mapping):
        made = _split(made, kind)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise DataError(
            f"collate returns {described(made)}, but it must return a pair (inputs, targets) or a "
            "dictionary."
        )
    return structure(made[0]), made[1]


def _one_sample(item: Any, index: int, kind: TargetKind) -> tuple[Tensors, Any]:
    if isinstance(item, Mapping):
        item = _split(item, kind)
    if isinstance(item, tuple | list) and len(item) == 3:
        number = item[2]
        if isinstance(number, int | np.integer) or (is_array(number) and number.ndim == 0):
            item = item[:2]  # (input, label, index)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"Sample {index} is {described(item)}, not a pair (input, label).")
    value, target = item
    parts = value if isinstance(value, Mapping) else {"": value}
    for name, part in parts.items():
        if not is_readable(part):
            called = f"{name!r}" if name else "The input"
            raise DataError(
                f"{called} of sample {index} is {described(part)}, not a tensor, array or image; "
                "give the data set a transform that makes it one."
            )
    if kind == "labels":
        return structure(value), target
    if not is_readable(target):
        raise DataError(
            f"The target of sample {index} is {described(target)}, which is no number, tensor or "
            "array."
        )
    return structure(value), structure(target)


def _varies(read: _ItemReader, count: int) -> bool:
    """Whether samples differ each time they are read, as those with random crops do."""
    rows = sorted({place * count // _ASKED for place in range(_ASKED)})
    found = []
    for seed in (1, 2):
        with process_generators_seeded(seed):
            found.append(each_tensor(read(rows)[0]))
    return not all(map(torch.equal, *found))


def class_names(source: Any) -> tuple[str, ...]:
    """The names of the classes as torchvision or Hugging Face has them, if there are any."""
    names: Any = getattr(source, "classes", None)
    features = getattr(source, "features", None)
    if names is None and isinstance(features, Mapping):
        name = next((each for each in TARGET_NAMES if each in features), "")
        names = getattr(features.get(name), "names", None)
    if names is None and hasattr(source, "dataset"):
        return class_names(source.dataset)  # a part of a data set
    if not is_listed(names) or not all(isinstance(each, str) for each in names):
        return ()
    return tuple(names)


# Both --------------------------------------------------------------------------------------------


def _samples(inputs: Any, targets: Any, kind: TargetKind, names: tuple[str, ...] = ()) -> Samples:
    """Samples of what `ready` makes; `names` are those of the classes that the data set tells."""
    if kind != "labels":
        return Samples(inputs, targets)
    numbers, found = labels_of(targets)
    fits = len(numbers) and int(numbers.max()) < len(names)
    return Samples(inputs, numbers, classes=found or (names if fits else ()))


def _read_as_needed(items: Items, kind: TargetKind, names: tuple[str, ...] = ()) -> Samples:
    """Samples whose inputs stay where they are. All are read once, to be checked."""
    seen, targets = items, []
    for number, (inputs, wanted) in enumerate(items.chunks()):
        try:
            check_inputs(inputs)
        except DataError as error:
            raise DataError(f"From sample {number * CHUNK} on: {error}") from None
        seen = seen.noting(inputs)
        targets.append(wanted)
    if items.varies:
        seen = replace(seen, checksum=0)  # a data set may draw from a generator of its own
    if kind == "labels":
        labels = [label for part in targets for label in part]
        without = replace(seen, read=lambda rows: (items.read(rows)[0], None))
        return _samples(without, labels, kind, names)
    try:
        return Samples(seen, combined(torch.cat, targets))
    except RuntimeError:
        raise DataError(
            "The targets of these samples differ in their shape, but samples that are read as they "
            "are needed must all be padded to one length."
        ) from None


def _shapes(value: Tensors) -> object:
    if isinstance(value, Mapping):
        return {name: (each.shape, each.dtype) for name, each in value.items()}
    return [(each.shape, each.dtype) for each in each_tensor(value)]
