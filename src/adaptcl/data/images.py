"""Decoding many small images at once into one uint8 tensor [N, C, H, W]."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from adaptcl.data.progress import Progress, silent
from adaptcl.errors import DataError

Pixels: TypeAlias = NDArray[np.uint8]

IMAGES_A_TASK = 256
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""What is read, whatever a file is called: of others, Pillow starts programs to decode some."""
UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises on files that are no images, damaged, or suspiciously large."""


def decode_all(
    count: int,
    shape: tuple[int, int, int],
    decode: Callable[[int], Image.Image],
    threads: int,
    progress: Progress = silent,
) -> Tensor:
    """`count` images of one shape (C, H, W), the i-th as `decode(i)` gives it.

    `progress` is called from the caller's thread, and the first error stops the rest.
    """
    refuse_beyond_memory(count, shape)
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


def refuse_beyond_memory(count: int, shape: tuple[int, ...]) -> None:
    """An error if so many images would take more than half of this machine's memory.

    How large they are made can be another's decision, a server's or that of whoever packed them.
    """
    needed = count * math.prod(shape)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory // 2:
        raise DataError(
            f"{count:,} images of the shape {list(shape)} take {needed / 2**30:.1f} GiB, more than "
            f"half of this machine's {memory / 2**30:.1f} GiB of memory; use smaller or fewer ones."
        )


def useful_threads(width: int, height: int) -> int:
    """How many threads decode images of this size fastest.

    Pillow lets go of the interpreter only while it decompresses. Below about 100×100 pixels that
    is the smaller part of the work, and threads would mostly wait for each other.
    """
    return min(8, os.cpu_count() or 1) if width * height >= 100 * 100 else 1


def channels_first(image: Image.Image) -> Pixels:
    """Pixels [C, H, W] of a grayscale or RGB image."""
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def image_shape(image: Image.Image) -> tuple[int, int, int]:
    """Channels, height and width of an image, known from its header."""
    return len(image.getbands()), image.height, image.width


def to_image(pixels: Tensor) -> Image.Image:
    """The image of uint8 pixels [C, H, W] with one or three channels."""
    array = pixels.permute(1, 2, 0).contiguous().cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def decode_file(file: Path, mode: str, size: tuple[int, int]) -> Image.Image:
    """The image in `file`, upright, in `mode` (L or RGB) and scaled to `size` (width, height)."""
    try:
        with Image.open(file, formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened).convert(mode)
    except UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image: {error}") from error
    return image if image.size == size else image.resize(size, Image.Resampling.BOX)
