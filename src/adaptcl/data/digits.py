"""The classic 8×8 handwritten digits, which ship with the package: 1,437 + 360 images."""

from __future__ import annotations

from pathlib import Path

from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.samples import DataSet
from adaptcl.data.shipped import read_shipped

MEAN = (0.3045,)
STD = (0.3755,)


def load(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    """The shipped digits; they need no data folder."""
    return read_shipped("digits.npz", "digits", MEAN, STD)
