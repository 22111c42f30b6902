"""Custom data: turning tensors, arrays and torch-style data sets into `Samples`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptcl.custom import call_custom, custom_function
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError, describe_type

Array: TypeAlias = Tensor | NDArray[Any]


@runtime_checkable
class MapDataSet(Protocol):
    """A torch-style data set: a length, and a pair (input, label) at every index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def as_samples(source: Samples | tuple[Array, Array] | MapDataSet) -> Samples:
    """Make Samples of a pair (inputs, labels) or a torch-style data set; return Samples as is."""
    if isinstance(source, Samples):
        return source
    if isinstance(source, tuple | list) and len(source) == 2 and _are_arrays(source):
        inputs, labels = source
        return Samples(_inputs(_tensor(inputs)), _labels(_tensor(labels)))
    if isinstance(source, tuple | list) and len(source) == 2 and _are_numbers(source[1]):
        raise DataError(
            "Inputs and labels are lists; make arrays of them: (numpy.array(inputs), "
            "numpy.array(labels))."
        )
    if isinstance(source, Tensor | np.ndarray):
        raise DataError("There are inputs but no labels; give a pair (inputs, labels).")
    if isinstance(source, MapDataSet) and not isinstance(source, str | bytes | dict):
        return _from_map(source)
    kind = describe_type(source)
    raise DataError(
        f"{kind[0].upper()}{kind[1:]} cannot be read as samples; give a pair (inputs, labels) of "
        "tensors or arrays, or a data set with __len__ and __getitem__."
    )


def _from_map(source: MapDataSet) -> Samples:
    if len(source) == 0:
        raise DataError("There are no samples: a data set needs at least one.")
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for index in range(len(source)):
        item = source[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"Sample {index} is {describe_type(item)}, not a pair (input, label).")
        if not isinstance(item[0], Tensor | np.ndarray):
            raise DataError(
                f"The input of sample {index} is {describe_type(item[0])}, not a tensor or "
                "array; give the data set a transform that makes it one."
            )
        value = _tensor(item[0])
        first = inputs[0] if inputs else value
        if value.shape != first.shape or value.dtype != first.dtype:
            raise DataError(
                f"Sample {index} is {value.dtype} of the shape {list(value.shape)}, but sample 0 "
                f"is {first.dtype} of the shape {list(first.shape)}; all must be equal."
            )
        inputs.append(value)
        labels.append(_one_label(item[1], index))
    return Samples(_inputs(torch.stack(inputs)), torch.stack(labels))


def _one_label(label: object, index: int) -> Tensor:
    value = torch.as_tensor(label) if isinstance(label, int | np.generic | np.ndarray) else label
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise DataError(f"The label of sample {index} is {label!r}, not one class number.")
    return _labels(value.reshape(1))[0]


def _inputs(values: Tensor) -> Tensor:
    """Floats become float32, the type that models are trained in, and integers int64."""
    if values.dtype in (torch.int8, torch.int16, torch.int32):
        return values.long()
    return values.float() if values.dtype.is_floating_point else values


def _labels(values: Tensor) -> Tensor:
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise DataError(f"Labels must be integer class numbers, but these are {values.dtype}.")
    return values.to(torch.int64)


def _tensor(values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.ascontiguousarray(values))
    except TypeError as error:
        raise DataError(
            f"Arrays of {values.dtype} cannot be used; they must be numeric."
        ) from error


def _are_arrays(values: Iterable[object]) -> bool:
    return all(isinstance(value, Tensor | np.ndarray) for value in values)


def _are_numbers(values: object) -> bool:
    """Whether this is a list of labels rather than the last of two samples."""
    return isinstance(values, list | tuple) and len(values) > 0 and isinstance(values[0], int)


def load_custom(name: str, data_dir: Path | None) -> DataSet:
    """Load a data set with the function `package.module:factory`, which is given `data_dir`.

    It returns a DataSet, or a pair (train, test) of anything that `as_samples` accepts. Classes
    of a pair are named by their numbers.
    """
    gives = "a DataSet or a pair (train, test)"
    factory = custom_function(name, "a data set", ("data_dir",), gives)
    made = call_custom(name, factory, data_dir)
    if isinstance(made, DataSet):
        return made
    if not isinstance(made, tuple | list) or len(made) != 2:
        number = f" of {len(made)}" if isinstance(made, tuple | list) else ""
        raise DataError(
            f"{name} returned {describe_type(made)}{number}, not a DataSet or a pair (train, test)."
        )
    train, test = _part(name, "training", made[0]), _part(name, "test", made[1])
    count = 1 + int(max(train.labels.max(), test.labels.max()))
    return DataSet(name, train, test, tuple(str(number) for number in range(count)))


def _part(name: str, part: str, made: Any) -> Samples:
    try:
        return as_samples(made)
    except DataError as error:
        raise DataError(f"The {part} part that {name} returned cannot be used: {error}") from error
