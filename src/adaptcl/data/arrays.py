"""A data set as four arrays in one .npz file, as `numpy.savez` writes them and Keras ships them.

    x_train, x_test    inputs: uint8 images, floats, or whole numbers such as tokens
    y_train, y_test    whole class numbers from 0
    classes            their names; may be left out

uint8 images are [N, H, W] or [N, H, W, C], as NumPy's users have them, or [N, C, H, W]. As in any
file of images they are normalised by the mean and the standard deviation of the training part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptcl.data.convert import as_samples
from adaptcl.data.npz import names_in, read_npz
from adaptcl.data.samples import DataSet, Samples, channel_statistics
from adaptcl.errors import DataError

_NAMES = ("x_train", "y_train", "x_test", "y_test")
_CHANNELS = (1, 3)


def holds_arrays(path: Path) -> bool:
    """Whether a file looks as if it held such arrays, rather than a packed data set."""
    return not {"x_train", "x_test"}.isdisjoint(names_in(path))


def read(path: Path) -> DataSet:
    """The data set whose arrays are in `path`."""
    classes = ["classes"] if "classes" in names_in(path) else []
    arrays = read_npz(path, [*_NAMES, *classes])
    train, test = (
        _samples(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
    )
    if train.inputs.dtype != test.inputs.dtype:
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} but x_test {arrays['x_test'].dtype}; "
            "both must be of one type."
        )
    if arrays["x_train"].dtype == np.uint8:
        mean, std = channel_statistics(train.inputs)
        train, test = (Samples(each.inputs, each.labels, mean, std) for each in (train, test))
    count = 1 + int(max(train.labels.max(), test.labels.max()))
    names = arrays["classes"].tolist() if classes else range(count)
    return DataSet(path.stem, train, test, tuple(map(str, names)))


def _samples(path: Path, part: str, inputs: NDArray[Any], labels: NDArray[Any]) -> Samples:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    try:
        return as_samples((_channels_first(inputs), labels))
    except DataError as error:
        raise DataError(f"{path}: x_{part} and y_{part} cannot be used: {error}") from error


def _channels_first(inputs: NDArray[Any]) -> NDArray[Any]:
    if inputs.dtype != np.uint8:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, np.newaxis]
    if inputs.ndim == 4 and inputs.shape[3] in _CHANNELS and inputs.shape[1] not in _CHANNELS:
        return inputs.transpose(0, 3, 1, 2)
    return inputs
