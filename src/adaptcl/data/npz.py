"""NumPy archives (.npz): reading untrusted ones, and data sets of four plain arrays.

A data set as `numpy.savez` writes it and Keras ships it consists of

    x_train, x_test    inputs: uint8 images, floats, or whole numbers such as tokens
    y_train, y_test    whole class numbers from 0, or what else the objective of the run takes
    classes            names of the classes; may be left out

uint8 images are [N, H, W] or [N, H, W, C], as is usual in NumPy, or [N, C, H, W]. They are
normalised by the mean and the standard deviation of the training part.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptcl.data.convert import TargetKind, as_samples, numbered_classes
from adaptcl.data.samples import DataSet, Samples, channel_statistics
from adaptcl.errors import DataError


def read_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file. Nothing in it is unpickled."""
    _check_is_npz(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            arrays = {name: file[name] for name in names if name not in missing}
    except Exception as error:
        # A damaged archive fails in as many ways as there are compressors and array headers.
        raise DataError(f"{path} cannot be read: {error}") from error
    if missing:
        raise DataError(
            f"{path} has no array {missing[0]}; it must be a data set as `adaptcl data pack` makes "
            "them, or hold x_train, y_train, x_test and y_test. Read anything else by a function: "
            "package.module:load."
        )
    return arrays


def names_in(path: Path) -> set[str]:
    """The names of the arrays in an .npz file, without reading any array."""
    _check_is_npz(path)
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _check_is_npz(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or was cut short.")


_NAMES = ("x_train", "y_train", "x_test", "y_test")
_CHANNELS = (1, 3)


def holds_arrays(path: Path) -> bool:
    """Whether a file seems to hold a data set of plain arrays rather than a packed one."""
    return not {"x_train", "x_test"}.isdisjoint(names_in(path))


def read_arrays(path: Path, targets: TargetKind = "labels") -> DataSet:
    """Read the data set of plain arrays in `path`."""
    classes = ["classes"] if "classes" in names_in(path) else []
    arrays = read_npz(path, [*_NAMES, *classes])
    train, test = (
        _samples(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"], targets)
        for part in ("train", "test")
    )
    if train.kind != test.kind:
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} but x_test {arrays['x_test'].dtype}; "
            "both must be of one type."
        )
    if isinstance(train.inputs, Tensor) and train.inputs.dtype == torch.uint8:
        mean, std = channel_statistics(train.inputs)
        train, test = (replace(each, mean=mean, std=std) for each in (train, test))
    names = numbered_classes(train, test, targets)
    if names and classes:
        names = tuple(map(str, arrays["classes"].tolist()))
    return DataSet(path.stem, train, test, names)


def _samples(
    path: Path, part: str, inputs: NDArray[Any], targets: NDArray[Any], kind: TargetKind
) -> Samples:
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    try:
        return as_samples((_channels_first(inputs), targets), kind)
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
