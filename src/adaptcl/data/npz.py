"""Reading NumPy archives that nobody vouches for."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptcl.errors import DataError


def read_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file, with one sentence on whatever is wrong with it."""
    _refuse_others(path)
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
    """The names of the arrays in an .npz file, none of which is read."""
    _refuse_others(path)
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _refuse_others(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or was cut short.")
