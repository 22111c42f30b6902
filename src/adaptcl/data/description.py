"""What samples look like, for a server that has none: a file like the `inputs.json` of a run.

    {"shape": [1, 28, 28], "kind": "uint8", "mean": [0.29], "std": [0.35], "classes": ["a", "b"]}

`kind` is the type of the inputs, by default that of images. `mean` and `std` normalise images by
channel and may be left out. `classes` may be a number if the classes have no names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from adaptcl.data.samples import Inputs, Samples
from adaptcl.errors import DataError, RunFolderError

DESCRIBED = "inputs:"
"""Prefix of the path of a description."""
_KINDS = ("uint8", "int64", "float16", "bfloat16", "float32", "float64")
_MOST_CLASSES = 2**16


def read_description(path: Path) -> Inputs:
    """Read a description, and refuse one that cannot be of samples."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise DataError(f"{path} is not a JSON file: {error}.") from None
    if not isinstance(values, dict) or not {"shape", "classes"} <= values.keys():
        raise DataError(f"{path} must hold a JSON object with `shape` and `classes`.")
    try:
        known = Inputs.from_json({"kind": "uint8", "mean": None, "std": None, **_named(values)})
    except RunFolderError as error:
        raise DataError(f"{path}: {str(error).removeprefix('inputs.json ')}") from None
    if known.kind not in _KINDS:
        raise DataError(
            f"{path}: kind is {known.kind!r}, but it must be one of {', '.join(_KINDS)}."
        )
    if not known.classes or not isinstance(known.shape, tuple) or min(known.shape, default=0) < 1:
        raise DataError(f"{path}: shape must be sizes above 0, and there must be a class.")
    return known


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the names of classes, where only their number is given."""
    count = values["classes"]
    if type(count) is not int or not 1 <= count <= _MOST_CLASSES:
        return values
    return {**values, "classes": list(map(str, range(count)))}


def made_up(known: Inputs) -> Samples:
    """Two samples of this form, to trace and to try a model with."""
    dice = torch.Generator().manual_seed(0)
    shape = (2, *known.shape)
    if known.kind == "uint8":
        inputs = torch.randint(256, shape, generator=dice, dtype=torch.uint8)
    elif known.kind == "int64":
        inputs = torch.zeros(shape, dtype=torch.int64)  # any table has a row 0
    else:
        inputs = torch.randn(shape, generator=dice).to(getattr(torch, known.kind))
    return Samples(inputs, torch.zeros(2, dtype=torch.int64), known.mean, known.std)
