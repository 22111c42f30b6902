"""Packed data sets: all images of a data set compressed in one .npz file.

Arrays of the file, for S in train and test:

    S_bytes    uint8             the JPEG or PNG files, one after the other
    S_offsets  int64, N + 1      image i is S_bytes[S_offsets[i]:S_offsets[i + 1]]
    S_labels   an integer, N     class of image i
    classes    str               class names

All images have one size, and they are all grayscale or all RGB. The file is read with
`allow_pickle=False`, and everything in it is checked before use.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.image_folder import UNDECODABLE, decoded, image_shape, to_image, useful_threads
from adaptcl.data.items import CHUNK, Items
from adaptcl.data.npz import read_npz
from adaptcl.data.samples import DataSet, Samples, channel_statistics
from adaptcl.errors import DataError, SettingError
from adaptcl.storage import written_whole

PARTS = ("train", "test")
FORMATS = ("JPEG", "PNG")


def read_packed(
    path: Path,
    name: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    progress: OnProgress = silent,
) -> DataSet:
    """Read the data set in `path`.

    `mean` and `std` default to those of the training images, `name` to that of the file.
    """
    contents = ("bytes", "offsets", "labels")
    arrays = read_npz(path, ["classes", *(f"{part}_{each}" for part in PARTS for each in contents)])
    classes = _check_classes(arrays["classes"], path)
    train, test = (
        PackedPart(path, part, *(arrays[f"{part}_{each}"] for each in contents)) for part in PARTS
    )
    for part in (train, test):
        part.check(len(classes))
    before, total = len(train.labels), len(train.labels) + len(test.labels)
    shape = image_shape(train.open(0))
    train_images = train.decode(shape, lambda done, _: progress(done, total))
    test_images = test.decode(shape, lambda done, _: progress(before + done, total))
    if mean is None or std is None:
        mean, std = channel_statistics(train_images)
    if len(mean) != shape[0]:
        raise DataError(f"{path}: its images have {shape[0]} channels, not {len(mean)}.")
    return DataSet(
        name or path.stem,
        Samples(train_images, torch.from_numpy(train.labels.astype(np.int64)), mean, std),
        Samples(test_images, torch.from_numpy(test.labels.astype(np.int64)), mean, std),
        classes,
    )


def pack(
    dataset: DataSet, path: Path, quality: int | None = None, progress: OnProgress = silent
) -> Path:
    """Write `dataset` to the file `path`: as lossless PNG, or as JPEG of a `quality`."""
    if quality is not None and not 1 <= quality <= 100:
        raise SettingError(f"JPEG quality lies between 1 and 100, but is {quality}.")
    if path.suffix != ".npz":
        raise SettingError(f"A packed data set is an .npz file, but its name is {path.name}.")
    if path.exists():
        raise SettingError(f"{path} is there already; choose another name, or delete it first.")
    samples = {"train": dataset.train, "test": dataset.test}
    for held in samples.values():
        if held.kind != "uint8" or held.shape[0] not in (1, 3):
            raise DataError(
                f"{dataset.name} cannot be packed: only uint8 images of one or three channels "
                f"can, and it holds {held.kind} of the shape {list(held.shape)}."
            )
    total = sum(len(held) for held in samples.values())
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(dataset.classes, dtype=np.str_)}
    label_type = np.min_scalar_type(len(dataset.classes) - 1)
    done = 0
    for part, held in samples.items():
        files: list[bytes] = []
        for begin in range(0, len(held), CHUNK):
            some = torch.arange(begin, min(begin + CHUNK, len(held)), device=held.device)
            for pixels in held.stored(some)[0].cpu():
                files.append(_encode(to_image(pixels), quality))
                done += 1
                if done % 1000 == 0 or done == total:
                    progress(done, total)
        sizes = [0, *(len(file) for file in files)]
        arrays[f"{part}_bytes"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum(sizes, dtype=np.int64)
        arrays[f"{part}_labels"] = held.labels.cpu().numpy().astype(label_type)
    try:
        with written_whole(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def _encode(image: Image.Image, quality: int | None) -> bytes:
    stream = io.BytesIO()
    if quality is None:
        image.save(stream, "PNG", optimize=True)
    else:
        # Full colour resolution: small images would lose a lot by the usual half of it.
        image.save(stream, "JPEG", quality=quality, optimize=True, subsampling="4:4:4")
    return stream.getvalue()


def _check_classes(classes: NDArray[Any], path: Path) -> tuple[str, ...]:
    if classes.ndim != 1 or classes.dtype.kind != "U" or len(classes) == 0:
        raise DataError(f"{path}: classes must be a list of names.")
    return tuple(str(name) for name in classes)


@dataclass(frozen=True, eq=False)
class PackedPart:
    """The three arrays of the train or the test part of the file `path`."""

    path: Path
    name: str
    data: NDArray[Any]
    offsets: NDArray[Any]
    labels: NDArray[Any]

    def check(self, classes: int) -> None:
        """Raise `DataError` unless the arrays agree with each other and with `classes`."""
        where = f"{self.path}: {self.name}"
        if self.data.ndim != 1 or self.data.dtype != np.uint8:
            raise DataError(f"{where}_bytes must be a row of uint8.")
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "ui":
            raise DataError(f"{where}_labels must be a row of integers.")
        count, size = len(self.labels), len(self.data)
        if count == 0:
            raise DataError(f"{where}_labels is empty: there must be at least one image.")
        if self.offsets.shape != (count + 1,) or self.offsets.dtype.kind not in "ui":
            raise DataError(f"{where}_offsets must be {count + 1} integers, one more than labels.")
        first, last = self.offsets[0], self.offsets[-1]
        if first != 0 or last != size or np.any(self.offsets[1:] <= self.offsets[:-1]):
            raise DataError(f"{where}_offsets must rise from 0 to {size}, the size of the bytes.")
        if self.labels.min() < 0 or self.labels.max() >= classes:
            raise DataError(f"{where}_labels must lie between 0 and {classes - 1}.")

    def decode(self, shape: tuple[int, int, int], progress: OnProgress) -> Tensor | Items:
        """Decode all images of the part, which must have `shape`."""
        threads = useful_threads(shape[2], shape[1])
        count = len(self.labels)
        return decoded(count, shape, lambda i: self._decode_one(i, shape), threads, progress)

    def open(self, index: int) -> Image.Image:
        """Open the image at `index`: read its header, but do not decompress its pixels yet."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        try:
            image = Image.open(io.BytesIO(self.data[start:stop].tobytes()), formats=FORMATS)
        except UNDECODABLE as error:
            raise self._undecodable(index, error) from error
        if image.mode not in ("L", "RGB"):
            raise DataError(
                f"{self.path}: {self.name} image {index} is {image.mode}; images must be "
                "grayscale (L) or RGB."
            )
        return image

    def _decode_one(self, index: int, shape: tuple[int, int, int]) -> Image.Image:
        image = self.open(index)
        # The header is enough, so an image of another size is never decompressed.
        if image_shape(image) != shape:
            raise DataError(
                f"{self.path}: {self.name} image {index} has the shape "
                f"{list(image_shape(image))}, but the first {list(shape)}; all must be equal."
            )
        try:
            image.load()
        except UNDECODABLE as error:
            raise self._undecodable(index, error) from error
        return image

    def _undecodable(self, index: int, error: Exception) -> DataError:
        return DataError(f"{self.path}: {self.name} image {index} cannot be decoded: {error}")
