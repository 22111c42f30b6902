"""Reading the small data sets that come with the package, so that a first run needs no download.

Each is an .npz file of uint8 images [N, H, W], S_images and S_labels for S in train and test, and
`classes`. Images lie class after class, which compresses best; they are handed out dealt round
the classes, so that a prefix is a fair sample.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from adaptcl.data.npz import read_npz
from adaptcl.data.samples import DataSet, Samples


def read_shipped(
    filename: str, name: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> DataSet:
    """The shipped data set in `filename`."""
    wanted = ["classes", "train_images", "train_labels", "test_images", "test_labels"]
    with resources.as_file(resources.files("adaptcl.data") / "files" / filename) as path:
        arrays = read_npz(path, wanted)

    def part(which: str) -> Samples:
        labels = torch.from_numpy(arrays[f"{which}_labels"].astype(np.int64))
        images = torch.from_numpy(arrays[f"{which}_images"]).unsqueeze(1)
        return Samples(images, labels, mean, std).take(_round_the_classes(labels))

    classes = tuple(str(label) for label in arrays["classes"])
    return DataSet(name, part("train"), part("test"), classes)


def _round_the_classes(labels: torch.Tensor) -> torch.Tensor:
    """An order that takes the first of each class, then the second of each, and so on."""
    rank = torch.zeros_like(labels)
    for label in torch.unique(labels):
        members = labels == label
        rank[members] = torch.arange(int(members.sum()))
    return torch.argsort(rank, stable=True)
