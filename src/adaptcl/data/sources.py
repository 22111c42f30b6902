"""Every data set known by name, and the other ways to name one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adaptcl.data import digits, fashion, packed, tiny_imagenet
from adaptcl.data import npz as arrays
from adaptcl.data.cifar import CIFAR10, CIFAR100
from adaptcl.data.convert import load_from_factory
from adaptcl.data.data_dir import OnProgress, silent
from adaptcl.data.download import Archive, extract, fetch
from adaptcl.data.image_folder import read_folder
from adaptcl.data.samples import DataSet
from adaptcl.errors import DataError, SettingError

FOLDER = "folder:"
"""Before the path of images sorted into folders."""


class Load(Protocol):
    """Reads a data set from a data folder; shipped ones need none."""

    def __call__(self, data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
        """The data set, read whole."""
        ...


@dataclass(frozen=True)
class DataSource:
    """A data set known by name: how to read it, and where to get it unless it is shipped."""

    name: str
    summary: str
    load: Load
    archive: Archive | None = None


DATASETS: dict[str, DataSource] = {
    source.name: source
    for source in (
        DataSource("fashion", "8,000 images of Fashion-MNIST, shipped", fashion.load),
        DataSource("digits", "1,797 handwritten digits of 8×8, shipped", digits.load),
        DataSource("cifar10", "CIFAR-10", CIFAR10.load, CIFAR10.archive),
        DataSource("cifar100", "CIFAR-100", CIFAR100.load, CIFAR100.archive),
        DataSource(
            "tiny-imagenet",
            "Tiny-ImageNet, 200 classes, scaled to 32×32",
            tiny_imagenet.load,
            tiny_imagenet.ARCHIVE,
        ),
        DataSource(
            "tiny-imagenet-100",
            "the first 100 classes of Tiny-ImageNet",
            tiny_imagenet.load_first_100,
            tiny_imagenet.ARCHIVE,
        ),
    )
}


def load(name: str, data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    """The data set called `name`.

    That is a name in DATASETS, `folder:PATH` (images in train/CLASS and test/CLASS), the path of
    an .npz file, packed or of plain arrays, or `package.module:factory`, a function that takes
    `data_dir`.
    """
    if name in DATASETS:
        return DATASETS[name].load(data_dir, progress)
    if name.startswith(FOLDER):
        return read_folder(Path(name.removeprefix(FOLDER)), progress=progress)
    if name.endswith(".npz"):
        if arrays.holds_arrays(Path(name)):
            return arrays.read(Path(name))
        return packed.read(Path(name), progress=progress)
    if re.fullmatch(r"[\w.]+:\w+", name):
        return load_from_factory(name, data_dir)
    raise SettingError(
        f"There is no data set {name!r}; there are {', '.join(DATASETS)}, folder:PATH, the path "
        "of an .npz file, and package.module:factory."
    )


def anchored(name: str) -> str:
    """The same data set by a name that means it in every folder: paths are made absolute."""
    if name in DATASETS:
        return name
    if name.startswith(FOLDER):
        return FOLDER + os.path.abspath(name.removeprefix(FOLDER))
    return os.path.abspath(name) if name.endswith(".npz") else name


def get(name: str, data_dir: Path, url: str | None = None, progress: OnProgress = silent) -> Path:
    """Fetch the official archive of `name` and unpack it into `data_dir`; returns its folder.

    `url` is another place to fetch the same archive from. An archive that already lies in
    `data_dir` is used and kept, a fetched one is removed once it is unpacked.
    """
    archive = DATASETS[name].archive if name in DATASETS else None
    if archive is None:
        reason = "is shipped with AdaptCL" if name in DATASETS else "is not known"
        gettable = ", ".join(each.name for each in DATASETS.values() if each.archive)
        raise SettingError(f"The data set {name!r} {reason}; those to get are {gettable}.")
    target = data_dir / archive.folder
    if target.is_dir():
        return target
    file = data_dir / archive.filename
    was_there = file.exists()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{data_dir} cannot be made: {error.strerror}.") from error
    fetch(url or archive.url, archive.checksum, file, progress)
    extract(file, archive.folder, data_dir)
    if not was_there:
        file.unlink()
    return target
