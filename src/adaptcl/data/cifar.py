"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50,000 + 10,000 RGB images of 32×32.

Read from the official *binary* version: plain records of label bytes and 3,072 pixel bytes. The
more common Python version consists of pickles, which can run any code, so it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adaptcl.data.data_dir import Archive, OnProgress, locate, read_lines, read_whole, silent
from adaptcl.data.npz import read_packed
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar:
    """The files and constants in which the two differ."""

    name: str
    archive: Archive
    packed: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    classes: int
    label_bytes: int
    """Bytes before the pixels. The last is the label; CIFAR-100 has a coarse label before it."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def load(self, data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
        """Read it from a packed file or from the official folder in `data_dir`."""
        path = locate(self.name, data_dir, self.packed, self.archive.folder)
        if path.is_file():
            dataset = read_packed(path, self.name, self.mean, self.std, progress)
        else:
            names = tuple(read_lines(path / self.names))
            train = self._read([path / file for file in self.train])
            test = self._read([path / file for file in self.test])
            dataset = DataSet(self.name, train, test, names)
        if len(dataset.classes) != self.classes or dataset.train.shape != SHAPE:
            raise DataError(
                f"{path} is not {self.name}: it has {len(dataset.classes)} classes of images "
                f"{list(dataset.train.shape)}, not {self.classes} of {list(SHAPE)}."
            )
        return dataset

    def _read(self, files: Sequence[Path]) -> Samples:
        record = self.label_bytes + PIXELS
        contents = [read_whole(file) for file in files]
        for file, content in zip(files, contents, strict=True):
            if len(content) == 0 or len(content) % record:
                raise DataError(
                    f"{file} is damaged: its {len(content):,} bytes are not whole records of "
                    f"{record}; delete {file.parent} and get it again."
                )
        records = np.frombuffer(b"".join(contents), dtype=np.uint8).reshape(-1, record)
        labels = torch.from_numpy(records[:, self.label_bytes - 1].astype(np.int64))
        # A copy: without the labels in between, and writable, which a view of bytes is not.
        images = torch.from_numpy(records[:, self.label_bytes :].copy().reshape(-1, *SHAPE))
        return Samples(images, labels, self.mean, self.std)


CIFAR10 = Cifar(
    name="cifar10",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        checksum="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
    ),
    packed=("cifar10.npz", "cifar10-jpeg.npz"),
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    names="batches.meta.txt",
    classes=10,
    label_bytes=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

CIFAR100 = Cifar(
    name="cifar100",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        checksum="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
    ),
    packed=("cifar100.npz", "cifar100-jpeg.npz"),
    train=("train.bin",),
    test=("test.bin",),
    names="fine_label_names.txt",
    classes=100,
    label_bytes=2,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
