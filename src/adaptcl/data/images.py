"""Images: files sorted into folders, or packed into one .npz file, decoded into tensors.

Of a folder, ROOT/train/CLASS/* and ROOT/test/CLASS/*, all images get the size of the first. They
become RGB as soon as one of them has colour.

A packed data set holds all its images compressed. They have one size and are all grayscale or all
RGB. Its arrays, for S in train and test:

    S_bytes    uint8             the JPEG or PNG files, one after the other
    S_offsets  int64, N + 1      image i is S_bytes[S_offsets[i]:S_offsets[i + 1]]
    S_labels   an integer, N     class of image i
    classes    str               class names
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from adaptcl.data.columns import COLOUR_MODES, GRAY_MODES
from adaptcl.data.npz import read_npz
from adaptcl.data.samples import (
    CHUNK,
    DataSet,
    Items,
    Samples,
    channel_statistics,
    fits_in_memory,
    memory,
)
from adaptcl.errors import DataError, SettingError
from adaptcl.quantities import volume
from adaptcl.storage import written_whole

OnProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total) in bytes or images; total is None if it is unknown."""
Decode: TypeAlias = Callable[[int], Image.Image]
Shape: TypeAlias = tuple[int, int, int]  # channels, height and width
Numbers: TypeAlias = tuple[float, ...]

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"})
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""The only formats that are read, whatever a file's name says: for some others, Pillow starts
another program."""


def silent(done: int, total: int | None) -> None:
    """The progress callback that shows nothing."""


@contextmanager
def _opened(file: Path | io.BytesIO, name: object) -> Iterator[Image.Image]:
    """Open an image. What Pillow raises for files that are no images, damaged or suspiciously large
    becomes a `DataError` that names the file."""
    try:
        with Image.open(file, formats=_FORMATS) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} cannot be decoded as an image: {error}") from error


def decode_parts(
    name: str,
    classes: tuple[str, ...],
    parts: Sequence[tuple[Tensor, Decode]],
    shape: Shape,
    statistics: tuple[Numbers, Numbers] | None = None,
    progress: OnProgress = silent,
) -> DataSet:
    """A data set of a training and maybe a test part, of labels and of what decodes the i-th image.

    Without `statistics` both are normalised by those of the training images.
    """
    threads = useful_threads(shape[2], shape[1])
    total = sum(len(labels) for labels, _ in parts)
    before, images = 0, []
    for labels, decode in parts:
        count = len(labels)
        images.append(decode_all(count, shape, decode, threads, progress, before, total))
        before += count
    statistics = statistics or channel_statistics(images[0])
    samples = [
        Samples(each, labels, *statistics) for each, (labels, _) in zip(images, parts, strict=True)
    ]
    return DataSet(name, samples[0], samples[-1], classes)


def decode_all(
    count: int,
    shape: Shape,
    decode: Decode,
    threads: int,
    progress: OnProgress = silent,
    before: int = 0,
    total: int | None = None,
) -> Tensor | Items:
    """The images as a tensor, or as items to decode when needed if they would fill the memory.

    `progress` is called in the caller's thread. The first error stops the decoding.
    """

    def read(rows: Sequence[int]) -> tuple[Tensor, None]:
        return torch.from_numpy(np.stack([_channels_first(decode(row)) for row in rows])), None

    if not fits_in_memory(count * math.prod(shape)):
        # The size may come from an untrusted source: a server, or a packed file.
        needed = CHUNK * math.prod(shape)
        if needed > memory() // 2:
            raise DataError(
                f"{CHUNK:,} images of the shape {list(shape)} take {volume(needed)}, more than "
                f"half of this machine's {volume(memory())} of memory; use smaller ones."
            )
        return Items(read, torch.arange(count), torch.zeros((1, *shape), dtype=torch.uint8))
    images = torch.empty((count, *shape), dtype=torch.uint8)
    chunks = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        for rows, (decoded, _) in zip(chunks, pool.map(read, chunks), strict=True):
            images[rows.start : rows.stop] = decoded
            progress(before + rows.stop, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return images


def useful_threads(width: int, height: int) -> int:
    """The number of threads that decode images of this size fastest.

    Pillow releases the interpreter lock only while it decompresses. Below about 100×100 pixels
    that is the smaller part of the work, and threads would mostly wait for each other.
    """
    return min(8, os.cpu_count() or 1) if width * height >= 100 * 100 else 1


def _channels_first(image: Image.Image) -> NDArray[np.uint8]:
    """Pixels [C, H, W] of a grayscale or RGB image."""
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def file_decoder(files: Sequence[Path], mode: str, size: tuple[int, int]) -> Decode:
    """What decodes the i-th file, upright, in `mode` (L or RGB) and scaled to (width, height)."""

    def decode(index: int) -> Image.Image:
        with _opened(files[index], files[index]) as opened:
            image = ImageOps.exif_transpose(opened).convert(mode)
        return image if image.size == size else image.resize(size, Image.Resampling.BOX)

    return decode


# Folders ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """The images of FOLDER/CLASS/*, found and inspected, but not decoded yet."""

    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: Tensor
    gray: bool  # whether none of them has colour

    @classmethod
    def look(cls, folder: Path, classes: tuple[str, ...] | None = None) -> ImageFolder:
        """Find the images of all classes, or of the `classes` named."""
        classes = _class_names(folder) if classes is None else classes
        found = [
            (file, label)
            for label, name in enumerate(classes)
            for file in sorted((folder / name).glob("*"))
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        ]
        if not found:
            raise DataError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}).")
        files, labels = zip(*found, strict=True)
        # Read every header: after the first colour image, another one may still be broken.
        gray = [_is_gray(file) for file in files]
        return cls(classes, files, torch.tensor(labels), all(gray))

    @property
    def first_size(self) -> tuple[int, int]:
        """Width and height of the first image, upright."""
        with _opened(self.files[0], self.files[0]) as image:
            return ImageOps.exif_transpose(image).size

    def decode(self, size: tuple[int, int], *, gray: bool) -> Tensor | Items:
        """Decode all images to [N, C, H, W], scaled to `size` (width, height)."""
        shape = (1 if gray else 3, size[1], size[0])
        decode = file_decoder(self.files, "L" if gray else "RGB", size)
        return decode_all(len(self.files), shape, decode, useful_threads(*self.first_size))


def read_folder(root: Path, progress: OnProgress = silent, *, needs_test: bool = True) -> DataSet:
    """Read the images in the folders train/CLASS and test/CLASS of `root`."""
    classes = _class_names(root / "train")
    names = ["train", "test"] if needs_test or (root / "test").is_dir() else ["train"]
    unknown = sorted({each for name in names for each in _class_names(root / name)} - {*classes})
    if unknown:
        raise DataError(f"{root / 'test'} has a class {unknown[0]} that train does not have.")
    folders = [ImageFolder.look(root / name, classes) for name in names]
    size, gray = folders[0].first_size, all(each.gray for each in folders)
    parts = [
        (each.labels, file_decoder(each.files, "L" if gray else "RGB", size)) for each in folders
    ]
    shape = (1 if gray else 3, size[1], size[0])
    return decode_parts(root.resolve().name, classes, parts, shape, progress=progress)


def _class_names(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        missing = folder if folder.parent.is_dir() else folder.parent
        raise DataError(
            f"There is no folder {missing.absolute()}; images are expected in train/CLASS and "
            "test/CLASS of the folder that the data (--data) names."
        )
    names = (each.name for each in folder.iterdir() if each.is_dir())
    found = tuple(sorted(name for name in names if not name.startswith(".")))
    if not found:
        raise DataError(f"{folder} has no class folders; images are expected in {folder}/CLASS.")
    return found


def _is_gray(file: Path) -> bool:
    with _opened(file, file) as image:
        mode = image.mode
    if mode not in GRAY_MODES | COLOUR_MODES:
        raise DataError(f"{file} has pixels of the kind {mode}; only 8-bit images can be used.")
    return mode in GRAY_MODES


# Packed files -----------------------------------------------------------------------------------


def read_packed(
    path: Path,
    name: str | None = None,
    statistics: tuple[Numbers, Numbers] | None = None,
    progress: OnProgress = silent,
) -> DataSet:
    """Read the packed data set in `path`.

    `statistics` default to those of the training images, `name` to that of the file.
    """
    contents = ("bytes", "offsets", "labels")
    wanted = [f"{part}_{each}" for part in ("train", "test") for each in contents]
    arrays = read_npz(path, ["classes", *wanted])
    classes = arrays["classes"]
    if classes.ndim != 1 or classes.dtype.kind != "U" or len(classes) == 0:
        raise DataError(f"{path}: classes must be a list of names.")
    train, test = (
        PackedPart(f"{path}: {part}", *(arrays[f"{part}_{each}"] for each in contents))
        for part in ("train", "test")
    )
    with train.opened(0) as first:
        shape = _shape(first)
    if statistics and len(statistics[0]) != shape[0]:
        raise DataError(f"{path}: its images have {shape[0]} channels, not {len(statistics[0])}.")
    parts = [
        (torch.from_numpy(each.labels.astype(np.int64)), partial(each.decode_one, shape=shape))
        for each in (train, test)
    ]
    names = tuple(map(str, classes))
    return decode_parts(name or path.stem, names, parts, shape, statistics, progress)


@dataclass(frozen=True, eq=False)
class PackedPart:
    """The three arrays of the train or the test part of a packed file."""

    where: str  # the file and the part, for errors
    data: NDArray[Any]
    offsets: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        """Raise `DataError` unless the arrays agree with each other."""
        if self.data.ndim != 1 or self.data.dtype != np.uint8:
            raise DataError(f"{self.where}_bytes must be a row of uint8.")
        if self.labels.ndim != 1 or len(self.labels) == 0 or self.labels.dtype.kind not in "ui":
            raise DataError(f"{self.where}_labels must be a row of integers, one for each image.")
        count, size = len(self.labels), len(self.data)
        if self.offsets.shape != (count + 1,) or self.offsets.dtype.kind not in "ui":
            raise DataError(
                f"{self.where}_offsets must be {count + 1} integers, one more than labels."
            )
        first, last = self.offsets[0], self.offsets[-1]
        if first != 0 or last != size or np.any(self.offsets[1:] <= self.offsets[:-1]):
            raise DataError(
                f"{self.where}_offsets must rise from 0 to {size}, the size of the bytes."
            )

    @contextmanager
    def opened(self, index: int) -> Iterator[Image.Image]:
        """Open the image at `index`: read its header, but do not decompress its pixels yet."""
        name = f"{self.where} image {index}"
        stream = io.BytesIO(self.data[self.offsets[index] : self.offsets[index + 1]].tobytes())
        with _opened(stream, name) as image:
            if image.mode not in ("L", "RGB"):
                raise DataError(f"{name} is {image.mode}; images must be grayscale (L) or RGB.")
            yield image

    def decode_one(self, index: int, shape: Shape) -> Image.Image:
        with self.opened(index) as image:
            # The header is enough, so an image of another size is never decompressed.
            if _shape(image) != shape:
                raise DataError(
                    f"{self.where} image {index} has the shape {list(_shape(image))}, but the "
                    f"first {list(shape)}; all must be equal."
                )
            image.load()
            return image


def _shape(image: Image.Image) -> Shape:
    return len(image.getbands()), image.height, image.width


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
        for rows in torch.split(torch.arange(len(held), device=held.device), CHUNK):
            for pixels in held.stored(rows)[0].cpu():
                files.append(_encode(pixels, quality))
                done += 1
                if done % 1000 == 0 or done == total:
                    progress(done, total)
        sizes = [0, *(len(file) for file in files)]
        arrays[f"{part}_bytes"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum(sizes, dtype=np.int64)
        arrays[f"{part}_labels"] = held.labels.cpu().numpy().astype(label_type)
    with written_whole(path, DataError) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def _encode(pixels: Tensor, quality: int | None) -> bytes:
    """A file of uint8 pixels [C, H, W] with one or three channels."""
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    stream = io.BytesIO()
    if quality is None:
        image.save(stream, "PNG", optimize=True)
    else:
        # Full colour resolution: small images would lose a lot by the usual half of it.
        image.save(stream, "JPEG", quality=quality, optimize=True, subsampling="4:4:4")
    return stream.getvalue()
