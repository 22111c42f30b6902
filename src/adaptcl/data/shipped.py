"""The two small data sets that ship with the package, so that a first run needs no download.

Each is an .npz file with the arrays `train_images`, `train_labels`, `test_images`, `test_labels`
and `classes`; images are uint8 [N, H, W]. The files store images class by class, because that
compresses best. Loading interleaves the classes, so that any prefix is a fair sample.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.npz import read_npz
from adaptcl.data.samples import DataSet, Samples


def load_digits(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    """The classic 8×8 handwritten digits: 1,437 training and 360 test images."""
    return _load("digits", "digits.npz", mean=0.3045, std=0.3755)


def load_fashion(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    """A part of Fashion-MNIST: 6,000 training and 2,000 test images, grayscale 28×28."""
    return _load("fashion", "fashion-mnist-8000.npz", mean=0.2860, std=0.3530)


def _load(name: str, filename: str, mean: float, std: float) -> DataSet:
    wanted = ["classes", "train_images", "train_labels", "test_images", "test_labels"]
    with resources.as_file(resources.files("adaptcl.data") / "files" / filename) as path:
        arrays = read_npz(path, wanted)

    def samples(part: str) -> Samples:
        labels = torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64))
        images = torch.from_numpy(arrays[f"{part}_images"]).unsqueeze(1)
        return Samples(images, labels, (mean,), (std,)).take(_interleaved(labels))

    classes = tuple(str(label) for label in arrays["classes"])
    return DataSet(name, samples("train"), samples("test"), classes)


def _interleaved(labels: Tensor) -> Tensor:
    """The order that takes the first sample of each class, then the second of each, and so on."""
    rank = torch.zeros_like(labels)
    for label in torch.unique(labels):
        members = labels == label
        rank[members] = torch.arange(int(members.sum()))
    return torch.argsort(rank, stable=True)
