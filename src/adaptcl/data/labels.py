"""Labels as class numbers, whether they were given as numbers or as names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptcl.data.columns import column, described, is_array, is_series
from adaptcl.errors import DataError


def labels_of(values: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers, and the names of the classes if labels are names.

    Names are numbered in their order, so the same names always get the same numbers.
    """
    if not isinstance(values, Tensor) and is_array(values):
        values = values.to_numpy() if is_series(values) else np.asarray(values)
    if isinstance(values, Tensor | np.ndarray):
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            hint = "; of one-hot labels give argmax(1)" if values.ndim == 2 else ""
            raise DataError(
                f"Labels must be one class number or name a sample, but they are "
                f"{described(values)}{hint}."
            )
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = column(values)
    _refuse_missing(values)
    if isinstance(values, Tensor):
        if values.dtype.is_floating_point or values.dtype.is_complex:
            raise DataError(_no_label(f"they are {described(values)}"))
        return values.to(torch.int64), ()
    labels = [_one_label(each, number) for number, each in enumerate(values)]
    named = sum(isinstance(each, str) for each in labels)
    if not named:
        return torch.tensor(labels, dtype=torch.int64), ()
    if named < len(labels):
        raise DataError(
            f"{named} of {len(labels)} labels are names and the others numbers; give all alike."
        )
    names, numbers = np.unique(np.array(labels, dtype=np.str_), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(map(str, names))


def _refuse_missing(values: Any) -> None:
    """Refuse labels of which some are missing.

    Gaps come as floats among names, and make floats of whole numbers. So without this they would
    be refused as numbers, which says nothing of the gaps.
    """
    if isinstance(values, Tensor):
        missing = int(values.isnan().sum())
    else:
        missing = sum(map(_is_missing, values))
    if missing:
        raise DataError(
            f"The target has no value in {missing} of {len(values)} rows; fill or drop them."
        )


def _is_missing(label: object) -> bool:
    """Whether this is None, NaN, or what pandas has for a missing value."""
    if isinstance(label, float | np.floating):
        return bool(np.isnan(label))
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def _one_label(label: Any, index: int) -> int | str:
    if isinstance(label, Tensor | np.ndarray) and len(label.reshape(-1)) == 1:
        label = label.reshape(-1)[0].item()
    if isinstance(label, str):
        return str(label)
    if isinstance(label, int | np.integer | np.bool_):
        return int(label)
    if isinstance(label, float | np.floating):
        raise DataError(_no_label(f"that of sample {index} is {label}"))
    raise DataError(
        f"The label of sample {index} is {described(label)}, not one class number or name."
    )


def _no_label(found: str) -> str:
    return (
        f"Labels must be class numbers or names, but {found}; to learn numbers choose "
        "objective = 'regression', or else make them whole numbers."
    )
