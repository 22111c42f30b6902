"""Images sorted into folders, ROOT/train/CLASS/* and ROOT/test/CLASS/*, decoded into tensors.

All images get one size: that of the first, unless another is asked for. They become RGB as soon as
one of them has colour.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from adaptcl.data.columns import COLOUR_MODES, GRAY_MODES
from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.samples import (
    CHUNK,
    DataSet,
    Items,
    Samples,
    channel_statistics,
    fits_in_memory,
    memory,
)
from adaptcl.errors import DataError

Pixels: TypeAlias = NDArray[np.uint8]

IMAGES_A_TASK = 256
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""The only formats that are read, whatever a file's name says: for some others, Pillow starts
another program."""
UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for files that are not images, damaged, or suspiciously large."""


def decoded(
    count: int,
    shape: tuple[int, int, int],
    decode: Callable[[int], Image.Image],
    threads: int,
    progress: OnProgress = silent,
) -> Tensor | Items:
    """The images as a tensor, or as items to decode when needed if they would fill the memory."""

    def read(rows: list[int]) -> tuple[Tensor, None]:
        return torch.from_numpy(np.stack([channels_first(decode(row)) for row in rows])), None

    if fits_in_memory(count * math.prod(shape)):
        return decode_all(count, shape, decode, threads, progress)
    _check_memory(CHUNK, shape)
    return Items(read, torch.arange(count), torch.zeros((1, *shape), dtype=torch.uint8))


def decode_all(
    count: int,
    shape: tuple[int, int, int],
    decode: Callable[[int], Image.Image],
    threads: int,
    progress: OnProgress = silent,
) -> Tensor:
    """`count` images of one `shape` as a uint8 tensor [N, C, H, W]; `decode(i)` gives the i-th.

    `progress` is called in the caller's thread. The first error stops the decoding.
    """
    _check_memory(count, shape)
    images = np.empty((count, *shape), dtype=np.uint8)

    def decode_some(start: int) -> int:
        stop = min(start + IMAGES_A_TASK, count)
        for index in range(start, stop):
            images[index] = channels_first(decode(index))
        return stop - start

    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        done = 0
        for decoded in pool.map(decode_some, range(0, count, IMAGES_A_TASK)):
            done += decoded
            progress(done, count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return torch.from_numpy(images)


def _check_memory(count: int, shape: tuple[int, ...]) -> None:
    """Raise `DataError` if the images would take more than half of this machine's memory.

    Their size may come from an untrusted source: a server, or a packed file.
    """
    needed = count * math.prod(shape)
    if needed > memory() // 2:
        raise DataError(
            f"{count:,} images of the shape {list(shape)} take {needed / 2**30:.1f} GiB, more than "
            f"half of this machine's {memory() / 2**30:.1f} GiB of memory; use smaller ones."
        )


def useful_threads(width: int, height: int) -> int:
    """The number of threads that decode images of this size fastest.

    Pillow releases the interpreter lock only while it decompresses. Below about 100×100 pixels
    that is the smaller part of the work, and threads would mostly wait for each other.
    """
    return min(8, os.cpu_count() or 1) if width * height >= 100 * 100 else 1


def channels_first(image: Image.Image) -> Pixels:
    """Pixels [C, H, W] of a grayscale or RGB image."""
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def image_shape(image: Image.Image) -> tuple[int, int, int]:
    """Channels, height and width of an image, from its header."""
    return len(image.getbands()), image.height, image.width


def to_image(pixels: Tensor) -> Image.Image:
    """The image of uint8 pixels [C, H, W] with one or three channels."""
    array = pixels.permute(1, 2, 0).contiguous().cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def decode_file(file: Path, mode: str, size: tuple[int, int]) -> Image.Image:
    """The image in `file`, upright, in `mode` (L or RGB) and scaled to `size` (width, height)."""
    with _opened(file) as opened:
        image = ImageOps.exif_transpose(opened).convert(mode)
    return image if image.size == size else image.resize(size, Image.Resampling.BOX)


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"})


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
        found = _files(folder, classes)
        # Read every header: after the first colour image, another one may still be broken.
        gray = [_is_gray(file) for file, _ in found]
        files = tuple(file for file, _ in found)
        return cls(classes, files, torch.tensor([label for _, label in found]), all(gray))

    @property
    def first_size(self) -> tuple[int, int]:
        """Width and height of the first image, upright."""
        with _opened(self.files[0]) as image:
            return ImageOps.exif_transpose(image).size

    def decode(
        self, size: tuple[int, int], *, gray: bool, progress: OnProgress = silent
    ) -> Tensor | Items:
        """Decode all images to [N, C, H, W], scaled to `size` (width, height)."""

        def decode(index: int) -> Image.Image:
            return decode_file(self.files[index], "L" if gray else "RGB", size)

        shape = (1 if gray else 3, size[1], size[0])
        threads = useful_threads(*self.first_size)
        return decoded(len(self.files), shape, decode, threads, progress)


def read_folder(
    root: Path, size: tuple[int, int] | None = None, progress: OnProgress = silent
) -> DataSet:
    """Read the images under `root`, scaled to `size` (width, height)."""
    classes = _class_names(root / "train")
    unknown = sorted(set(_class_names(root / "test")) - set(classes))
    if unknown:
        raise DataError(f"{root / 'test'} has a class {unknown[0]} that train does not have.")
    train, test = (ImageFolder.look(root / part, classes) for part in ("train", "test"))
    size, gray = size or train.first_size, train.gray and test.gray
    before, total = len(train.files), len(train.files) + len(test.files)
    images = train.decode(size, gray=gray, progress=lambda done, _: progress(done, total))
    others = test.decode(size, gray=gray, progress=lambda done, _: progress(before + done, total))
    mean, std = channel_statistics(images)
    return DataSet(
        root.resolve().name,
        Samples(images, train.labels, mean, std),
        Samples(others, test.labels, mean, std),
        classes,
    )


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


def _files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    if not found:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def _is_gray(file: Path) -> bool:
    with _opened(file) as image:
        mode = image.mode
    if mode not in GRAY_MODES | COLOUR_MODES:
        raise DataError(f"{file} has pixels of the kind {mode}; only 8-bit images can be used.")
    return mode in GRAY_MODES


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """Open an image file. What Pillow raises inside becomes a `DataError` that names the file."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image: {error}") from error
