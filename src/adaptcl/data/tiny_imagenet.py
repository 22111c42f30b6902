"""Tiny-ImageNet: 200 classes of 500 + 50 RGB images, scaled from 64×64 to 32×32.

The validation part is used as the test part, because the official test part has no labels. Classes
are in the order of their WordNet ids, in a packed file too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from adaptcl.data.data_dir import Archive, OnProgress, locate, read_lines, silent
from adaptcl.data.image_folder import decode_all, decode_file, useful_threads
from adaptcl.data.npz import read_packed
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError

NAME = "tiny-imagenet"
SIZE = 32
# Measured on images scaled to 32×32, which vary less than the originals of 64×64.
MEAN = (0.4806, 0.4486, 0.3983)
STD = (0.2521, 0.2448, 0.2590)
ARCHIVE = Archive(
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    checksum="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
)
PACKED = ("tiny-imagenet.npz", "tiny-imagenet-jpeg.npz", "tinyimagenet32-jpeg.npz")


def load_tiny_imagenet(data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
    """All 200 classes, from a packed file or from the official folder in `data_dir`."""
    path = locate(NAME, data_dir, PACKED, ARCHIVE.folder)
    if path.is_file():
        return read_packed(path, NAME, MEAN, STD, progress)
    return read_official(path, SIZE, progress)


def load_first_100(data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
    """The first 100 classes, as the data set `tiny-imagenet-100`."""
    return first_classes(load_tiny_imagenet(data_dir, progress), 100, f"{NAME}-100")


def first_classes(dataset: DataSet, count: int, name: str) -> DataSet:
    """The samples of the first `count` classes."""
    if len(dataset.classes) < count:
        raise DataError(f"{name} needs {count} classes, but there are {len(dataset.classes)}.")
    train, test = (
        samples.take(torch.nonzero(samples.labels < count).flatten())
        for samples in (dataset.train, dataset.test)
    )
    return DataSet(name, train, test, dataset.classes[:count])


def read_official(folder: Path, size: int = SIZE, progress: OnProgress = silent) -> DataSet:
    """Read the official layout in `folder` and scale every image to `size` × `size`."""
    ids = sorted(set(read_lines(folder / "wnids.txt")))
    numbers = {wordnet_id: number for number, wordnet_id in enumerate(ids)}
    train = _training_files(folder, ids)
    test = _validation_files(folder, numbers)
    files = [file for file, _ in train + test]
    labels = torch.tensor([label for _, label in train + test])

    def decode(index: int) -> Image.Image:
        return decode_file(files[index], "RGB", (size, size))

    images = decode_all(len(files), (3, size, size), decode, useful_threads(64, 64), progress)
    border = len(train)
    return DataSet(
        NAME,
        Samples(images[:border], labels[:border], MEAN, STD),
        Samples(images[border:], labels[border:], MEAN, STD),
        _class_names(folder, ids),
    )


def _training_files(folder: Path, ids: Sequence[str]) -> list[tuple[Path, int]]:
    by_class = [sorted((folder / "train" / each / "images").glob("*.JPEG")) for each in ids]
    counts = {len(files) for files in by_class}
    # The official set is balanced, so unequal classes reveal an unfinished copy.
    if len(counts) != 1 or 0 in counts:
        raise DataError(
            f"{folder / 'train'} is incomplete: its classes hold from {min(counts, default=0)} to "
            f"{max(counts, default=0)} images; delete {folder} and get it again."
        )
    return [(file, label) for label, files in enumerate(by_class) for file in files]


def _validation_files(folder: Path, numbers: dict[str, int]) -> list[tuple[Path, int]]:
    listing = folder / "val" / "val_annotations.txt"
    found = []
    for line in read_lines(listing):
        filename, _, rest = line.partition("\t")
        wordnet_id = rest.partition("\t")[0]
        if wordnet_id not in numbers:
            raise DataError(f"{listing} names a class that wnids.txt does not: {line!r}.")
        found.append((folder / "val" / "images" / filename, numbers[wordnet_id]))
    if not found:
        raise DataError(f"{listing} lists no images; delete {folder} and get it again.")
    return found


def _class_names(folder: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The first synonym of each class in words.txt, or its id if it has none."""
    words = {}
    if (folder / "words.txt").is_file():
        for line in read_lines(folder / "words.txt"):
            wordnet_id, _, synonyms = line.partition("\t")
            words[wordnet_id] = synonyms.partition(",")[0].strip()
    return tuple(words.get(wordnet_id) or wordnet_id for wordnet_id in ids)
