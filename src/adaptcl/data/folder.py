"""Any images sorted into folders: ROOT/train/CLASS/* and ROOT/test/CLASS/*.

All become one size, the first image's unless told, and RGB as soon as one of them has colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor

from adaptcl.data.images import FORMATS, UNDECODABLE, decode_all, decode_file, useful_threads
from adaptcl.data.progress import Progress, silent
from adaptcl.data.samples import DataSet, Samples, channel_statistics
from adaptcl.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"})
GRAY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"})


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """The images of FOLDER/CLASS/*, found and looked at, but not decoded yet."""

    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: Tensor
    gray: bool
    """Whether none of them has colour."""

    @classmethod
    def look(cls, folder: Path, classes: tuple[str, ...] | None = None) -> ImageFolder:
        """What is there, of all classes or of those named."""
        classes = _class_names(folder) if classes is None else classes
        found = _files(folder, classes)
        # Every header is read, so that the first colour image does not hide a broken one behind it.
        gray = [_is_gray(file) for file, _ in found]
        files = tuple(file for file, _ in found)
        return cls(classes, files, torch.tensor([label for _, label in found]), all(gray))

    @property
    def first_size(self) -> tuple[int, int]:
        """Width and height of the first image."""
        return _upright_size(self.files[0])

    def decode(self, size: tuple[int, int], *, gray: bool, progress: Progress = silent) -> Tensor:
        """All images [N, C, H, W], scaled to `size` (width, height)."""

        def decode(index: int) -> Image.Image:
            return decode_file(self.files[index], "L" if gray else "RGB", size)

        shape = (1 if gray else 3, size[1], size[0])
        threads = useful_threads(*self.first_size)
        return decode_all(len(self.files), shape, decode, threads, progress)


def read_folder(
    root: Path, size: tuple[int, int] | None = None, progress: Progress = silent
) -> DataSet:
    """The images under `root`, scaled to `size` (width, height)."""
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
        raise DataError(
            f"There is no folder {folder}; images are expected in train/CLASS and test/CLASS."
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
    try:
        with Image.open(file, formats=FORMATS) as image:
            mode = image.mode
    except UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image: {error}") from error
    if mode not in GRAY_MODES | COLOUR_MODES:
        raise DataError(f"{file} has pixels of the kind {mode}; only 8-bit images can be used.")
    return mode in GRAY_MODES


def _upright_size(file: Path) -> tuple[int, int]:
    try:
        with Image.open(file, formats=FORMATS) as image:
            return ImageOps.exif_transpose(image).size
    except UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image: {error}") from error
