"""One column of data as a tensor, in the type that training takes, from whatever users have.

That is tensors, arrays, lists, images, and the columns of pandas. What no model can be trained on
is refused here too. Nothing imports pandas, h5py or Hugging Face: what comes from them is known by
its attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from adaptcl.errors import DataError, describe_type, listed
from adaptcl.units.tensors import Tensors, each_tensor, mapped

TargetKind: TypeAlias = Literal["labels", "floats", "classes", "tokens", "any"]
"""Class labels, one a sample; floats of any shape; class numbers of any shape; tokens that follow
those of the input; or whatever is given."""
IGNORED = -100  # the target of a place that counts for nothing, as in PyTorch's losses
_CHANNELS = (1, 3)
_MOST_CLASSES = 2**16
_GAPS = 100  # numbers for each class that occurs, above which labels cannot be class numbers
GRAY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"})


def is_frame(value: object) -> bool:
    """Whether this is a table with named columns, such as a pandas DataFrame."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def is_stored(value: object) -> bool:
    """Whether this is an array on disk: a memory map, or one of HDF5 or Zarr."""
    if isinstance(value, Tensor | np.ndarray | np.generic) or is_series(value):
        return isinstance(value, np.memmap)
    return all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__", "__len__"))


def is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) or is_series(value) or is_stored(value)


def is_listed(value: object) -> bool:
    """Whether this is a list of some kind, such as a tuple or a column of Hugging Face."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_structure(value: object) -> bool:
    """Whether this is several arrays, in a tuple, a list or a dictionary."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, tuple | list) and bool(value) and all(map(is_array, value))


def is_readable(value: Any) -> bool:
    """Whether one sample can have this as its input."""
    if is_array(value) or is_structure(value) or isinstance(value, Image.Image | int | float):
        return True
    return is_listed(value) and all(map(is_readable, value))


def structure(value: Any, function: Callable[[Any], Any] | None = None) -> Any:
    """Tensors of arrays, numbers and lists, alone or in a tuple or a dictionary.

    Another `function` than `column` makes something else of each array.
    """
    function = function or column
    if isinstance(value, Mapping):
        return {str(name): function(each) for name, each in value.items()}
    return tuple(map(function, value)) if is_structure(value) else function(value)


def column(values: Any) -> Tensor:
    """One tensor of an array, a frame, an image, a number, or a list of these."""
    if isinstance(values, Tensor):
        return values.detach()
    if is_frame(values):
        return torch.from_numpy(_table(values))
    if is_listed(values):
        if values and (is_array(values[0]) or isinstance(values[0], Image.Image)):
            return _stacked([column(each) for each in values])
        try:
            return torch.as_tensor(values if isinstance(values, list) else list(values))
        except (TypeError, ValueError) as error:
            raise DataError(f"{described(values)} cannot be used: {error}.") from None
    if isinstance(values, Image.Image):
        if values.mode not in GRAY_MODES | COLOUR_MODES:
            raise DataError(
                f"An image has pixels of the kind {values.mode}; only 8-bit can be used."
            )
        values = np.asarray(values.convert("L" if values.mode in GRAY_MODES else "RGB"))
    elif is_series(values):
        values = values.to_numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise DataError(f"{described(values)} cannot be used; it must be numeric.")
    # PyTorch cannot share memory that is read-only, strided backwards or of another byte order.
    array = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    return torch.from_numpy(array) if array.ndim else torch.as_tensor(array.item())


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    for number, each in enumerate(tensors):
        if (each.shape, each.dtype) != (tensors[0].shape, tensors[0].dtype):
            raise DataError(
                f"Sample {number} is {described(each)}, but sample 0 is {described(tensors[0])}; "
                "all must be equal."
            )
    return torch.stack(list(tensors))


def refuse_repeated_columns(frame: Any) -> None:
    """An error if two columns have one name: they could not be told apart."""
    counts = Counter(map(str, frame.columns))
    if repeated := [repr(name) for name, count in counts.items() if count > 1]:
        raise DataError(
            f"The frame has several columns with the name {listed(repeated)}; rename or drop all "
            "but one."
        )


def _table(frame: Any) -> NDArray[np.float32]:
    """The numbers of a frame [rows, columns]."""
    refuse_repeated_columns(frame)
    columns = []
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype.kind == "O" and not any(isinstance(each, str) for each in values):
            with suppress(TypeError, ValueError):  # or these are no numbers with gaps among them
                values = np.array([np.nan if x is None else x for x in values], dtype=np.float32)
        if values.dtype.kind not in "biuf":
            first = values[0] if len(values) else None
            raise DataError(
                f"The column {str(name)!r} of the frame holds {described(first)}, not numbers; "
                "make numbers of it, as pandas.get_dummies does, or drop it."
            )
        values = values.astype(np.float32)
        if missing := int(np.isnan(values).sum()):
            raise DataError(
                f"The column {str(name)!r} of the frame has no value in {missing} of {len(values)} "
                "rows; fill them, or drop these rows."
            )
        columns.append(values)
    if not columns:
        raise DataError("The frame has no columns to learn from.")
    return np.stack(columns, axis=1)


# Words -------------------------------------------------------------------------------------------


def described(value: Any) -> str:
    """What was given, for an error: its type, and its shape, names or beginning."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a Tensor of {kind} of the shape {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} of the shape {list(value.shape)}"
    if is_frame(value):
        return f"{describe_type(value)} with the columns {listed(map(str, value.columns))}"
    if isinstance(value, Mapping):
        return f"{describe_type(value)} with {listed(map(repr, value))}"
    if is_listed(value):
        first = f", the first {described(value[0])}" if len(value) else ""
        return f"{describe_type(value)} of {len(value)}{first}"
    shown = isinstance(value, str | bytes | int | float) and not isinstance(value, bool)
    return f"{describe_type(value)} ({value!r:.40})" if shown else describe_type(value)


def is_series(value: object) -> bool:
    """Whether this is one column of a table, such as a pandas Series."""
    return hasattr(value, "to_numpy") and not hasattr(value, "columns")


# Types ------------------------------------------------------------------------------------------


def ready(inputs: Tensors, targets: Any, kind: TargetKind) -> tuple[Tensors, Any]:
    """Inputs and targets in the types that training takes; labels stay as they are."""
    if kind != "labels":
        targets = typed_targets(structure(targets), kind)
    if kind == "tokens":
        targets = _following(inputs, targets)
    if isinstance(inputs, Mapping) and len(inputs) == 1:
        inputs = next(iter(inputs.values()))
    inputs = _channels_first(inputs) if isinstance(inputs, Tensor) else inputs
    return mapped(_input, inputs), targets


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


def typed_targets(values: Tensors, kind: TargetKind) -> Tensors:
    if kind == "any":
        return mapped(_input, values)
    if not isinstance(values, Tensor):
        raise DataError(f"There are several targets a sample, but they must be {_KINDS[kind]}.")
    if kind == "floats":
        return values.float()
    if values.dtype.is_floating_point or values.dtype.is_complex:
        raise DataError(f"Targets must be {_KINDS[kind]}, but these are {values.dtype}.")
    return values.long()


_KINDS: Mapping[str, str] = {
    "floats": "one tensor of numbers",
    "classes": "whole class numbers",
    "tokens": "whole numbers of tokens",
}
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)


def _input(values: Tensor) -> Tensor:
    """Floats become float32, the type that models are trained in, and integers int64."""
    if values.dtype in _WHOLE:
        return values.long()
    return values.float() if values.dtype.is_floating_point else values


def _channels_first(images: Tensor) -> Tensor:
    """uint8 images [N, H, W] or [N, H, W, C], as NumPy and Pillow have them, as [N, C, H, W]."""
    if images.dtype != torch.uint8:
        return images
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.ndim == 4 and images.shape[3] in _CHANNELS and images.shape[1] not in _CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    return images


# Checks -----------------------------------------------------------------------------------------


def check_inputs(inputs: Tensors) -> None:
    """An error if a model cannot be trained on these."""
    tensors = each_tensor(inputs)
    if not tensors or any(each.ndim == 0 or len(each) == 0 for each in tensors):
        raise DataError("There are no samples: a data set needs at least one.")
    if len({len(each) for each in tensors}) > 1:
        counts = ", ".join(str(len(each)) for each in tensors)
        raise DataError(f"The tensors of the inputs have {counts} samples; all must be equal.")
    is_alone = isinstance(inputs, Tensor)
    for each in tensors:
        if each.dtype == torch.uint8 and not is_alone:
            raise DataError(
                "uint8 inputs are scaled only if they are the only inputs; convert them to float."
            )
        if each.dtype == torch.uint8 and each.ndim != 4:
            raise DataError(
                f"uint8 inputs are taken for images [N, C, H, W], but these have the shape "
                f"{list(each.shape)}; reshape them, or convert them to float."
            )
        if each.dtype in (torch.uint8, torch.int64) or (each.dtype == torch.bool and not is_alone):
            continue  # bool is a mask
        if not each.dtype.is_floating_point:
            raise DataError(
                f"Inputs must be uint8 images, floats, or int64 numbers such as tokens, but these "
                f"are {each.dtype}."
            )
        check_finite("Inputs", each)


def check_finite(what: str, tensor: Tensor) -> None:
    """An error if some numbers are NaN or infinite."""
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        odd = ~finite.reshape(len(finite), -1).all(1)
        raise DataError(
            f"{what} hold NaN or infinite values, in {int(odd.sum())} of {len(odd)} samples, the "
            f"first of them number {int(odd.int().argmax())}; replace or drop those samples."
        )


def check_targets(targets: Tensors, count: int) -> None:
    for each in each_tensor(targets):
        if each.ndim == 0 or len(each) != count:
            number = len(each) if each.ndim else 1
            raise DataError(f"There are {count} inputs but {number} labels; both must be equal.")
        if each.is_floating_point():
            check_finite("Targets", each)
        elif each.dtype not in (torch.int64, torch.bool):
            raise DataError(f"Targets must be int64 or floats, but these are {each.dtype}.")
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.ndim != 1:
        return
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < 0:
        raise DataError(
            f"Labels must count from 0, but there is a label {lowest}, that of sample "
            f"{int(targets.argmin())}."
        )
    # A model has a score for every number, so one wrong label could cost gigabytes.
    if highest >= _MOST_CLASSES and highest > _GAPS * (distinct := len(torch.unique(targets))):
        raise DataError(
            f"Labels must count from 0, but there is a label {highest:,}, that of sample "
            f"{int(targets.argmax())}, and only {distinct:,} different ones; number the classes "
            "from 0, or give labels as names."
        )


def check_normalisation(
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
