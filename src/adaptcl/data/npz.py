"""NumPy archives (.npz): reading untrusted ones, data sets of four plain arrays, and packed ones.

A data set as `numpy.savez` writes it and Keras ships it consists of

    x_train, x_test    inputs: uint8 images, floats, or whole numbers such as tokens
    y_train, y_test    whole class numbers from 0, or what else the objective of the run takes
    classes            names of the classes; may be left out

uint8 images are [N, H, W] or [N, H, W, C], as is usual in NumPy, or [N, C, H, W]. They are
normalised by the mean and the standard deviation of the training part.

A packed data set holds all its images compressed. They have one size and are all grayscale or all
RGB. Its arrays, for S in train and test:

    S_bytes    uint8             the JPEG or PNG files, one after the other
    S_offsets  int64, N + 1      image i is S_bytes[S_offsets[i]:S_offsets[i + 1]]
    S_labels   an integer, N     class of image i
    classes    str               class names
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as format_
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from adaptcl.data.columns import TargetKind
from adaptcl.data.convert import as_samples
from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.image_folder import UNDECODABLE, decoded, image_shape, to_image, useful_threads
from adaptcl.data.samples import (
    CHUNK,
    DataSet,
    Items,
    Samples,
    channel_statistics,
    fits_in_memory,
    renumbered,
)
from adaptcl.errors import DataError, SettingError
from adaptcl.storage import written_whole


def read_npz(
    path: Path, names: Sequence[str], large: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file. Nothing in it is unpickled.

    Those that are named in `large` too stay on disk if they would fill the memory.
    """
    _check_is_npz(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            mapped = [name for name in large if name in file.files and _fills_memory(path, name)]
            arrays = {
                name: _mapped(path, name) if name in mapped else file[name]
                for name in names
                if name not in missing
            }
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
    """The names of the arrays in an .npz file, without reading any array."""
    _check_is_npz(path)
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _fills_memory(path: Path, name: str) -> bool:
    with zipfile.ZipFile(path) as archive:
        return not fits_in_memory(archive.getinfo(f"{name}.npy").file_size)


def _mapped(path: Path, name: str) -> NDArray[Any]:
    """An array of the file as a memory map, which `numpy.load` makes only of .npy files."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"{name} would fill the memory and is compressed; write the file by numpy.savez, not "
            "savez_compressed, so that it can be read as it is needed."
        )
    with path.open("rb") as file:
        # A stored entry is a header of 30 bytes, a name, a field of any length, and the .npy file.
        file.seek(entry.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        major, _ = format_.read_magic(file)
        read = format_.read_array_header_1_0 if major == 1 else format_.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        begin = file.tell()
    if dtype.hasobject:
        raise DataError(f"{name} holds objects, and nothing in a file is unpickled.")
    return np.memmap(path, dtype, "r", begin, shape, "F" if is_fortran else "C")


def _check_is_npz(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"There is no file {path.absolute()}, which the data (--data) should be.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or was cut short.")


_NAMES = ("x_train", "y_train", "x_test", "y_test")


def holds_arrays(path: Path) -> bool:
    """Whether a file seems to hold a data set of plain arrays rather than a packed one."""
    return not {"x_train", "x_test"}.isdisjoint(names_in(path))


def read_arrays(path: Path, targets: TargetKind = "labels") -> DataSet:
    """Read the data set of plain arrays in `path`."""
    classes = ["classes"] if "classes" in names_in(path) else []
    arrays = read_npz(path, [*_NAMES, *classes], large=("x_train", "x_test"))
    train, test = (
        _samples(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"], targets)
        for part in ("train", "test")
    )
    if train.kind != test.kind:
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} but x_test {arrays['x_test'].dtype}; "
            "both must be of one type."
        )
    if train.kind == "uint8":
        mean, std = channel_statistics(train.inputs)
        train, test = (replace(each, mean=mean, std=std) for each in (train, test))
    if classes and targets == "labels":
        names = tuple(map(str, arrays["classes"].tolist()))
        return DataSet(path.stem, renumbered(train, names), renumbered(test, names), names)
    return DataSet.of(path.stem, train, test, has_classes=targets == "labels")


def _samples(
    path: Path, part: str, inputs: NDArray[Any], targets: NDArray[Any], kind: TargetKind
) -> Samples:
    try:
        return as_samples((inputs, targets), kind)
    except DataError as error:
        raise DataError(f"{path}: x_{part} and y_{part} cannot be used: {error}") from error


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
