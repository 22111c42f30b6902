"""Data sets: loading them by name, and splitting them among the workers.

A new data set is one function that loads it and one line in `DATASETS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adaptcl.custom import call_custom, custom_function, hint_at_name
from adaptcl.data.columns import TargetKind
from adaptcl.data.convert import as_samples, part_as_samples
from adaptcl.data.description import BY_WORKERS, DESCRIBED
from adaptcl.data.images import OnProgress, pack, read_folder, read_packed, silent
from adaptcl.data.npz import names_in, read_arrays
from adaptcl.data.partition import missing_classes
from adaptcl.data.published import (
    CIFAR10,
    CIFAR100,
    TINY_IMAGENET,
    Archive,
    extract,
    fetch,
    load_digits,
    load_fashion,
    load_first_100,
    load_tiny_imagenet,
)
from adaptcl.data.samples import DataSet, Samples, without_test_part
from adaptcl.errors import AdaptCLError, DataError, SettingError, describe_type, hint_at_value

_TAKES = ("data_dir",)  # what a function that loads data is called with
_NO_FOLDER = "no --data-dir; give --data-dir DIR if it reads files."
FOLDER = "folder:"  # prefix of the path of images sorted into folders


@dataclass(frozen=True)
class DataSource:
    """A data set known by name."""

    summary: str
    load: Callable[[Path | None, OnProgress], DataSet]
    """Reads it from a data folder, which shipped ones do not need."""
    archive: Archive | None = None  # where to download it; None if it is shipped


DATASETS: dict[str, DataSource] = {
    "fashion": DataSource("8,000 images of Fashion-MNIST, shipped", load_fashion),
    "digits": DataSource("1,797 handwritten digits of 8×8, shipped", load_digits),
    "cifar10": DataSource("CIFAR-10", CIFAR10.load, CIFAR10.archive),
    "cifar100": DataSource("CIFAR-100", CIFAR100.load, CIFAR100.archive),
    "tiny-imagenet": DataSource(
        "Tiny-ImageNet, 200 classes, scaled to 32×32", load_tiny_imagenet, TINY_IMAGENET
    ),
    "tiny-imagenet-100": DataSource(
        "the first 100 classes of Tiny-ImageNet", load_first_100, TINY_IMAGENET
    ),
}


def load(
    name: str,
    data_dir: Path | None = None,
    progress: OnProgress = silent,
    targets: TargetKind = "labels",
    *,
    needs_test: bool = True,
) -> DataSet:
    """Load the data set called `name`; plain arrays and functions may have other targets.

    Without a need for a test part there may be none; the training part then stands in its place.

    A name is one of DATASETS, `folder:PATH` (images in train/CLASS and test/CLASS), the path of an
    .npz file (packed, or of plain arrays), or `package.module:load`, a function of `data_dir`.
    """
    if name in DATASETS:
        return DATASETS[name].load(data_dir, progress)
    if name.startswith(FOLDER):
        return read_folder(Path(name.removeprefix(FOLDER)), progress, needs_test=needs_test)
    if name.startswith(DESCRIBED) or name == BY_WORKERS:
        raise SettingError(
            f"data is {name!r}, which describes samples but has none; only a server whose workers "
            "test the model can do without."
        )
    if name.endswith(".npz"):
        if "train_bytes" in names_in(Path(name)):
            return read_packed(Path(name), progress=progress)
        return read_arrays(Path(name), targets, needs_test=needs_test)
    if re.fullmatch(r"[\w.]+:\w+", name):
        return _load_custom(name, data_dir, targets, needs_test=needs_test)
    if Path(name).is_file():
        raise SettingError(
            f"{name} is a file, but only .npz files are read as they are; read it by a function of "
            f"yours, --data package.module:load{hint_at_name(name, _TAKES) or '.'}"
        )
    raise SettingError(
        f"There is no data set {name!r}; there are {', '.join(DATASETS)}, folder:PATH, the path "
        "of an .npz file, and package.module:load"
        f"{hint_at_name(name, _TAKES) or hint_at_value(name, DATASETS)}"
    )


def _load_custom(
    name: str, data_dir: Path | None, targets: TargetKind, *, needs_test: bool
) -> DataSet:
    """Load a data set with the function `package.module:load`, which is given `data_dir`.

    It returns a DataSet, or a pair (train, test) of anything that `as_samples` accepts.
    """
    gives = "a DataSet or a pair (train, test)"
    factory = custom_function(name, "a data set", _TAKES, gives)
    try:
        made = call_custom(name, factory, data_dir)
    except FileNotFoundError as error:
        where = _NO_FOLDER if data_dir is None else f"--data-dir {data_dir}."
        raise DataError(
            f"{name} does not find {str(error.filename)!r}; it was called with {where}"
        ) from error
    except AdaptCLError:
        raise
    except Exception as error:
        if data_dir is None:
            error.add_note(f"It was called with {_NO_FOLDER}")
        raise
    if isinstance(made, DataSet):
        return made
    if not isinstance(made, tuple | list) or len(made) != 2:
        number = f" of {len(made)}" if isinstance(made, tuple | list) else ""
        raise DataError(
            f"{name} returned {describe_type(made)}{number}, not a DataSet or a pair (train, test)."
        )
    if made[1] is None and needs_test:
        raise without_test_part(name)
    samples = [
        part_as_samples(f"The {part} part that {name} returned", each, targets)
        for part, each in zip(("training", "test"), made, strict=True)
        if part == "training" or each is not None
    ]
    return DataSet.of(name, samples[0], samples[-1], has_classes=targets == "labels")


def is_shipped(name: str) -> bool:
    """Whether a data set needs no data folder."""
    return name in DATASETS and DATASETS[name].archive is None


def anchored(name: str) -> str:
    """The name of the same data set in every working directory: paths become absolute."""
    if name in DATASETS:
        return name
    for prefix in (FOLDER, DESCRIBED):
        if name.startswith(prefix):
            return prefix + os.path.abspath(name.removeprefix(prefix))
    return os.path.abspath(name) if name.endswith(".npz") else name


def get(name: str, data_dir: Path, url: str | None = None, progress: OnProgress = silent) -> Path:
    """Download the official archive of `name`, unpack it into `data_dir` and return its folder.

    `url` is another address of the same archive. An archive that already lies in `data_dir` is
    used and kept; a downloaded one is removed after unpacking.
    """
    archive = DATASETS[name].archive if name in DATASETS else None
    if archive is None:
        reason = "is shipped with AdaptCL" if name in DATASETS else "is not known"
        gettable = ", ".join(each for each in DATASETS if DATASETS[each].archive)
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


__all__ = [
    "DATASETS",
    "FOLDER",
    "DataSet",
    "DataSource",
    "OnProgress",
    "Samples",
    "anchored",
    "as_samples",
    "get",
    "is_shipped",
    "load",
    "missing_classes",
    "pack",
    "silent",
]
