"""Custom data: turning tensors, arrays and torch-style data sets into `Samples`.

What the targets are depends on what is learned: class labels, numbers, the classes of all pixels,
or the tokens that follow. The objective of a run says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptcl.custom import call_custom, custom_function
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError, describe_type
from adaptcl.units.tensors import Tensors, mapped

Array: TypeAlias = Tensor | NDArray[Any]
TargetKind: TypeAlias = Literal["labels", "floats", "classes", "tokens", "any"]
"""Class labels, one a sample; floats of any shape; class numbers of any shape; tokens that follow
those of the input; or whatever is given."""
Collate: TypeAlias = Callable[[list[Any]], Any]
"""Makes one batch of a list of samples, as that of a DataLoader does."""

IGNORED = -100
"""The target of a place that counts for nothing, as in PyTorch's losses."""
_TARGET_NAMES = ("labels", "label", "targets", "target")
"""What a dictionary may call its targets."""


@runtime_checkable
class MapDataSet(Protocol):
    """A torch-style data set: a length, and a pair (input, target) at every index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def as_samples(
    source: Any, targets: TargetKind = "labels", collate: Collate | None = None
) -> Samples:
    """Make Samples of a pair (inputs, targets), a dictionary, or a torch-style data set.

    `collate` makes one batch of all samples; it can pad those of different lengths.
    """
    if isinstance(source, Samples):
        if targets in ("labels", "any"):
            return source
        return replace(source, targets=_targets(source.targets, targets))
    if collate is not None:
        source = _collated(source, collate)
    if isinstance(source, Mapping) and targets == "labels" and _target_name(source) is None:
        source = dict(source)  # it is refused by its plain name
    elif isinstance(source, Mapping) or (targets == "tokens" and _is_array(source)):
        inputs, wanted = _split(source, targets)
        return _samples(inputs, wanted, targets)
    elif isinstance(source, tuple | list) and len(source) == 2 and _are_whole(*source):
        inputs, wanted = source
        return _samples(inputs, wanted, targets)
    if isinstance(source, tuple | list) and len(source) == 2 and _are_numbers(source[1]):
        raise DataError(
            "Inputs and labels are lists; make arrays of them: (numpy.array(inputs), "
            "numpy.array(labels))."
        )
    if _is_array(source):
        raise DataError("There are inputs but no labels; give a pair (inputs, labels).")
    if isinstance(source, MapDataSet) and not isinstance(source, str | bytes | dict):
        return _from_map(source, targets)
    kind = describe_type(source)
    raise DataError(
        f"{kind[0].upper()}{kind[1:]} cannot be read as samples; give a pair (inputs, labels) of "
        "tensors or arrays, or a data set with __len__ and __getitem__."
    )


def _samples(inputs: Any, targets: Any, kind: TargetKind) -> Samples:
    """Samples of whole arrays."""
    made, wanted = _structure(inputs), _targets(_structure(targets), kind)
    if kind == "tokens":
        wanted = _following(made, wanted)
    return Samples(mapped(_input, made), wanted)


def _collated(source: Any, collate: Collate) -> Any:
    # A pair of all inputs and all targets, or a data set of samples.
    is_pair = isinstance(source, tuple) and len(source) == 2
    items = [*zip(*source, strict=True)] if is_pair else [source[n] for n in range(len(source))]
    made = collate(items)
    if isinstance(made, Mapping) or (isinstance(made, tuple | list) and len(made) == 2):
        return made if isinstance(made, Mapping) else tuple(made)
    raise DataError(
        f"collate returns {describe_type(made)}, but it must return a pair (inputs, targets) or a "
        "dictionary."
    )


def _from_map(source: MapDataSet, kind: TargetKind) -> Samples:
    if len(source) == 0:
        raise DataError("There are no samples: a data set needs at least one.")
    inputs: list[Tensors] = []
    targets: list[Tensors] = []
    for index in range(len(source)):
        value, target = _one_sample(source[index], index, kind)
        first = inputs[0] if inputs else value
        if _shapes(value) != _shapes(first):
            raise DataError(
                f"Sample {index} is {_in_words(value)}, but sample 0 is {_in_words(first)}; all "
                "must be equal."
            )
        inputs.append(value)
        targets.append(target)
        if _shapes(target) != _shapes(targets[0]):
            raise DataError(
                f"The target of sample {index} is {_in_words(target)}, but that of sample 0 is "
                f"{_in_words(targets[0])}; all must be equal, or give a collate that pads them."
            )
    return _samples(_stacked(inputs), _stacked(targets), kind)


def _one_sample(item: Any, index: int, kind: TargetKind) -> tuple[Tensors, Tensors]:
    if isinstance(item, Mapping):
        item = _split(item, kind)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"Sample {index} is {describe_type(item)}, not a pair (input, label).")
    value, target = item
    if not (_is_array(value) or _is_structure(value)):
        raise DataError(
            f"The input of sample {index} is {describe_type(value)}, not a tensor or "
            "array; give the data set a transform that makes it one."
        )
    if kind == "labels":
        return _structure(value), _one_label(target, index)
    try:
        return _structure(value), _structure(target)
    except (TypeError, ValueError):
        raise DataError(
            f"The target of sample {index} is {describe_type(target)}, which is no number, tensor "
            "or array."
        ) from None


def _one_label(label: object, index: int) -> Tensor:
    value = torch.as_tensor(label) if isinstance(label, int | np.generic | np.ndarray) else label
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise DataError(f"The label of sample {index} is {label!r}, not one class number.")
    return _labels(value.reshape(1))[0]


def _split(whole: Any, kind: TargetKind) -> tuple[Any, Any]:
    """Inputs and targets of a dictionary of both; the tokens of a text are their own targets."""
    if not isinstance(whole, Mapping):
        return whole, whole
    name = _target_name(whole)
    if name is not None:
        return {key: value for key, value in whole.items() if key != name}, whole[name]
    if kind == "tokens" and "input_ids" in whole:
        return dict(whole), whole["input_ids"]
    raise DataError(
        f"The dictionary has {', '.join(map(repr, whole))}, but no 'labels'; give it the targets "
        "by that name."
    )


def _target_name(whole: Mapping[str, Any]) -> str | None:
    return next((name for name in _TARGET_NAMES if name in whole), None)


def _following(inputs: Tensors, targets: Tensors) -> Tensors:
    """For each place the token that follows.

    Hugging Face gives the tokens themselves as labels and leaves the shift to the model. Targets
    that equal the inputs can mean nothing else, since nobody learns to repeat. Padding that a mask
    marks counts for nothing.
    """
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(tokens, Tensor) or not isinstance(targets, Tensor):
        return targets
    if tokens.shape != targets.shape or tokens.ndim != 2:
        return targets
    counted = targets != IGNORED
    if not torch.equal(tokens.to(targets.dtype)[counted], targets[counted]):
        return targets
    if isinstance(inputs, Mapping) and "attention_mask" in inputs:
        counted = counted & inputs["attention_mask"].bool()
    shifted = torch.full_like(targets, IGNORED)
    shifted[:, :-1] = torch.where(counted, targets, IGNORED)[:, 1:]
    return shifted


def _targets(values: Tensors, kind: TargetKind) -> Tensors:
    """Targets in the types of their kind."""
    if kind == "any":
        return mapped(_input, values)
    if not isinstance(values, Tensor):
        raise DataError(f"There are several targets a sample, but they must be {_KINDS[kind]}.")
    if kind == "labels":
        return _labels(values)
    if kind == "floats":
        return values.float()
    if values.dtype.is_floating_point or values.dtype.is_complex:
        raise DataError(f"Targets must be {_KINDS[kind]}, but these are {values.dtype}.")
    return values.long()


_KINDS: Mapping[str, str] = {
    "labels": "one class number each",
    "floats": "one tensor of numbers",
    "classes": "whole class numbers",
    "tokens": "whole numbers of tokens",
}


def _input(values: Tensor) -> Tensor:
    """Floats become float32, the type that models are trained in, and integers int64."""
    if values.dtype in (torch.int8, torch.int16, torch.int32):
        return values.long()
    return values.float() if values.dtype.is_floating_point else values


def _labels(values: Tensor) -> Tensor:
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise DataError(f"Labels must be integer class numbers, but these are {values.dtype}.")
    return values.to(torch.int64)


def _structure(value: Any) -> Tensors:
    """Tensors of arrays, numbers and lists of numbers, alone or in a tuple or a dictionary."""
    if isinstance(value, Mapping):
        return {str(name): _tensor(each) for name, each in value.items()}
    return tuple(map(_tensor, value)) if _is_structure(value) else _tensor(value)


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values)
    try:
        return torch.from_numpy(np.ascontiguousarray(values))
    except TypeError as error:
        raise DataError(
            f"Arrays of {values.dtype} cannot be used; they must be numeric."
        ) from error


def _stacked(values: Sequence[Tensors]) -> Tensors:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.stack(values)  # type: ignore[arg-type]
    if isinstance(first, Mapping):
        return {name: torch.stack([each[name] for each in values]) for name in first}  # type: ignore[index, call-overload]
    return tuple(map(torch.stack, zip(*values, strict=True)))


def _shapes(value: Tensors) -> object:
    if isinstance(value, Mapping):
        return {name: (each.shape, each.dtype) for name, each in value.items()}
    each = [value] if isinstance(value, Tensor) else value
    return [(one.shape, one.dtype) for one in each]


def _in_words(value: Tensors) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of the shape {list(value.shape)}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    return ", ".join(map(_in_words, value))


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_structure(value: object) -> bool:
    """Whether this is several arrays, in a tuple, a list or a dictionary."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, tuple | list) and bool(value) and all(map(_is_array, value))


def _are_whole(inputs: object, targets: object) -> bool:
    """Whether these are all inputs and all targets rather than two samples."""
    return (_is_array(inputs) or _is_structure(inputs)) and (
        _is_array(targets) or isinstance(targets, Mapping)
    )


def _are_numbers(values: object) -> bool:
    """Whether this is a list of labels rather than the last of two samples."""
    return isinstance(values, list | tuple) and len(values) > 0 and isinstance(values[0], int)


def load_custom(name: str, data_dir: Path | None, targets: TargetKind = "labels") -> DataSet:
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
    train = _part(name, "training", made[0], targets)
    test = _part(name, "test", made[1], targets)
    return DataSet(name, train, test, numbered_classes(train, test, targets))


def numbered_classes(train: Samples, test: Samples, targets: TargetKind) -> tuple[str, ...]:
    """Names for classes that have none: their numbers. Empty where targets are no labels."""
    if targets != "labels":
        return ()
    count = 1 + int(max(train.labels.max(), test.labels.max()))
    return tuple(map(str, range(count)))


def _part(name: str, part: str, made: Any, targets: TargetKind) -> Samples:
    try:
        return as_samples(made, targets)
    except DataError as error:
        raise DataError(f"The {part} part that {name} returned cannot be used: {error}") from error
