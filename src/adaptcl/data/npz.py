"""NumPy archives (.npz): reading untrusted ones, and data sets of four plain arrays.

A data set as `numpy.savez` writes it and Keras ships it consists of

    x_train, x_test    inputs: uint8 images, floats, or whole numbers such as tokens
    y_train, y_test    whole class numbers from 0, or what else the objective of the run takes
    classes            names of the classes; may be left out

uint8 images are [N, H, W] or [N, H, W, C], as is usual in NumPy, or [N, C, H, W]. They are
normalised by the mean and the standard deviation of the training part.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as format_
from numpy.typing import NDArray

from adaptcl.data.convert import TargetKind, as_samples
from adaptcl.data.items import fits_in_memory
from adaptcl.data.samples import DataSet, Samples, channel_statistics, renumbered
from adaptcl.errors import DataError


def read_npz(
    path: Path, names: Sequence[str], large: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file. Nothing in it is unpickled.

    Those that are named in `large` too stay on disk if they would fill the memory.
    """
    _check_is_npz(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            mapped = [name for name in large if name in file.files and _fills_memory(path, name)]
            arrays = {
                name: _mapped(path, name) if name in mapped else file[name]
                for name in names
                if name not in missing
            }
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


def _fills_memory(path: Path, name: str) -> bool:
    with zipfile.ZipFile(path) as archive:
        return not fits_in_memory(archive.getinfo(f"{name}.npy").file_size)


def _mapped(path: Path, name: str) -> NDArray[Any]:
    """An array of the file as a memory map, which `numpy.load` makes only of .npy files."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"{name} would fill the memory and is compressed; write the file by numpy.savez, not "
            "savez_compressed, so that it can be read as it is needed."
        )
    with path.open("rb") as file:
        # A stored entry is a header of 30 bytes, a name, a field of any length, and the .npy file.
        file.seek(entry.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        major, _ = format_.read_magic(file)
        read = format_.read_array_header_1_0 if major == 1 else format_.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        begin = file.tell()
    if dtype.hasobject:
        raise DataError(f"{name} holds objects, and nothing in a file is unpickled.")
    return np.memmap(path, dtype, "r", begin, shape, "F" if is_fortran else "C")


def _check_is_npz(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or was cut short.")


_NAMES = ("x_train", "y_train", "x_test", "y_test")


def holds_arrays(path: Path) -> bool:
    """Whether a file seems to hold a data set of plain arrays rather than a packed one."""
    return not {"x_train", "x_test"}.isdisjoint(names_in(path))


def read_arrays(path: Path, targets: TargetKind = "labels") -> DataSet:
    """Read the data set of plain arrays in `path`."""
    classes = ["classes"] if "classes" in names_in(path) else []
    arrays = read_npz(path, [*_NAMES, *classes], large=("x_train", "x_test"))
    train, test = (
        _samples(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"], targets)
        for part in ("train", "test")
    )
    if train.kind != test.kind:
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} but x_test {arrays['x_test'].dtype}; "
            "both must be of one type."
        )
    if train.kind == "uint8":
        mean, std = channel_statistics(train.inputs)
        train, test = (replace(each, mean=mean, std=std) for each in (train, test))
    if classes and targets == "labels":
        names = tuple(map(str, arrays["classes"].tolist()))
        return DataSet(path.stem, renumbered(train, names), renumbered(test, names), names)
    return DataSet.of(path.stem, train, test, has_classes=targets == "labels")


def _samples(
    path: Path, part: str, inputs: NDArray[Any], targets: NDArray[Any], kind: TargetKind
) -> Samples:
    try:
        return as_samples((inputs, targets), kind)
    except DataError as error:
        raise DataError(f"{path}: x_{part} and y_{part} cannot be used: {error}") from error
