"""Fashion-MNIST, the part that ships with the package: 6,000 + 2,000 grayscale 28×28 images."""

from __future__ import annotations

from pathlib import Path

from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.samples import DataSet
from adaptcl.data.shipped import read_shipped

MEAN = (0.2860,)
STD = (0.3530,)


def load(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    """The shipped part of Fashion-MNIST; it needs no data folder."""
    return read_shipped("fashion-mnist-8000.npz", "fashion", MEAN, STD)
