"""NumPy archives (.npz): reading untrusted ones, and data sets of plain arrays.

A data set as `numpy.savez` writes it and Keras ships it consists of

    x_train, x_test    inputs: uint8 images, floats, or whole numbers such as tokens
    y_train, y_test    whole class numbers from 0, or what else the objective of the run takes
    classes            names of the classes; may be left out
    columns            names of the columns of the inputs, if these are tables; may be left out

x_test and y_test may be left out where workers hold back samples to test on.

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

from adaptcl.data.columns import TargetKind
from adaptcl.data.convert import part_as_samples
from adaptcl.data.samples import (
    DataSet,
    channel_statistics,
    fits_in_memory,
    renumbered,
    without_test_part,
)
from adaptcl.errors import DataError, listed


def names_in(path: Path) -> set[str]:
    """The names of the arrays in an .npz file, without reading any array."""
    if not path.is_file():
        raise DataError(f"There is no file {path.absolute()}, which the data (--data) should be.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or was cut short.")
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def read_npz(
    path: Path, names: Sequence[str], large: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file. Nothing in it is unpickled.

    Those that are named in `large` too stay on disk if they would fill the memory.
    """
    there = names_in(path)
    missing = next((name for name in names if name not in there), None)
    if missing is not None:
        raise DataError(
            f"{path} has no array {missing}, only {listed(sorted(there)) or 'none'}; it must be a "
            "data set as `adaptcl data pack` makes them, or hold x_train, y_train, x_test and "
            "y_test. Read anything else by a function: package.module:load."
        )
    try:
        mapped = {name: array for name in large if (array := _mapped(path, name)) is not None}
        with np.load(path, allow_pickle=False) as file:
            return {name: mapped[name] if name in mapped else file[name] for name in names}
    except Exception as error:
        # A damaged archive fails in as many ways as there are compressors and array headers.
        raise DataError(f"{path} cannot be read: {error}") from error


def _mapped(path: Path, name: str) -> NDArray[Any] | None:
    """A memory map of an array that would fill the memory, which NumPy makes only of .npy files."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{name}.npy")
    if fits_in_memory(entry.file_size):
        return None
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


def read_arrays(path: Path, targets: TargetKind = "labels", *, needs_test: bool = True) -> DataSet:
    """Read the data set of plain arrays in `path`."""
    there = names_in(path)
    parts = ["train"] if there.isdisjoint({"x_test", "y_test"}) else ["train", "test"]
    if needs_test and "test" not in parts and "x_train" in there:
        raise without_test_part(str(path), "x_test and y_test")
    inputs = [f"x_{part}" for part in parts]
    names = [*inputs, *(f"y_{part}" for part in parts), *sorted({"classes", "columns"} & there)]
    arrays = read_npz(path, names, large=inputs)
    samples = [
        part_as_samples(
            f"{path}: x_{part} and y_{part}", (arrays[f"x_{part}"], arrays[f"y_{part}"]), targets
        )
        for part in parts
    ]
    train, test = samples[0], samples[-1]
    if train.kind != test.kind:
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} but x_test {arrays['x_test'].dtype}; "
            "both must be of one type."
        )
    if train.kind == "uint8":
        mean, std = channel_statistics(train.inputs)
        train, test = (replace(each, mean=mean, std=std) for each in (train, test))
    if "columns" in arrays:
        columns = tuple(map(str, arrays["columns"].tolist()))
        if len(set(columns)) < len(columns):
            raise DataError(f"{path}: columns names a column twice.")
        if train.shape != (len(columns),):
            raise DataError(
                f"{path}: columns has {len(columns)} names, but an input has the shape "
                f"{list(train.shape)}."
            )
        train, test = (replace(each, columns={"": columns}) for each in (train, test))
    if "classes" in arrays and targets == "labels":
        classes = tuple(map(str, arrays["classes"].tolist()))
        return DataSet(path.stem, renumbered(train, classes), renumbered(test, classes), classes)
    return DataSet.of(path.stem, train, test, has_classes=targets == "labels")
