"""Published data sets: small ones that ship with the package, and others that users download.

In the data folder a data set lies either packed in one file or in its official layout. A fetched
file takes its name only after its checksum is verified. Nothing of an archive lands outside its
folder, and the folder appears only when it is complete.

CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) are 50,000 + 10,000 RGB images of 32×32. They are read
from the official *binary* version: plain records of label bytes and 3,072 pixel bytes. The more
common Python version consists of pickles, which can run any code, so it is not read.

Tiny-ImageNet is 200 classes of 500 + 50 RGB images, scaled from 64×64 to 32×32. The validation part
is used as the test part, because the official test part has no labels. Classes are in the order of
their WordNet ids, in a packed file too.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import urlsplit

import numpy as np
import torch

from adaptcl.data.images import Numbers, OnProgress, decode_parts, file_decoder, read_packed, silent
from adaptcl.data.npz import read_npz
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError, SettingError
from adaptcl.storage import written_whole

_BLOCK = 1 << 18
_SILENCE = 30.0  # seconds without a byte after which a download fails
_ALGORITHMS = {32: "md5", 64: "sha256"}


@dataclass(frozen=True)
class Archive:
    """An official archive, and what it becomes in the data folder."""

    url: str
    checksum: str  # MD5 or SHA-256, in hexadecimal
    folder: str  # what it unpacks to
    packed: tuple[str, ...]  # names of packed files that may lie there instead

    @property
    def filename(self) -> str:
        return self.url.rpartition("/")[2]

    def locate(self, name: str, data_dir: Path | None) -> Path:
        """The path of the data set `name`: a packed file, or else the folder."""
        if data_dir is None:
            raise DataError(
                f"{name} needs a data folder: get it with `adaptcl data get {name} --data-dir DIR` "
                "and run with --data-dir DIR."
            )
        for path in (*(data_dir / each for each in self.packed), data_dir / self.folder):
            if path.exists():
                return path
        raise DataError(
            f"{data_dir} holds neither {self.packed[0]} nor the folder {self.folder}: get {name} "
            f"with `adaptcl data get {name} --data-dir {data_dir}`."
        )


def fetch(url: str, checksum: str, destination: Path, progress: OnProgress = silent) -> Path:
    """Download `url` to `destination` and verify its MD5 or SHA-256 `checksum` (hexadecimal).

    A file with this checksum that already exists is kept. Otherwise the download goes to a
    temporary file, which any error, Ctrl-C included, removes.
    """
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise SettingError(f"{url} cannot be fetched: only http, https and file addresses can.")
    algorithm = _ALGORITHMS.get(len(checksum))
    if algorithm is None:
        raise SettingError(f"{checksum!r} is neither an MD5 nor a SHA-256 checksum.")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if destination.is_file():
        with destination.open("rb") as opened:
            if hashlib.file_digest(opened, digest.copy).hexdigest() == checksum.lower():
                return destination
    with written_whole(destination, DataError) as file:
        for block in _blocks(url, progress):
            digest.update(block)
            file.write(block)
        if digest.hexdigest() != checksum.lower():
            raise DataError(
                f"{url} has the {algorithm} {digest.hexdigest()} instead of {checksum}: it is "
                "damaged or another file, so it was not kept."
            )
    return destination


def _blocks(url: str, progress: OnProgress) -> Iterator[bytes]:
    """The body of `url` in blocks. Every network failure becomes a DataError."""
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE) as response:
            announced = response.headers.get("Content-Length")
            total = int(announced) if announced and announced.isdigit() else None
            done = 0
            while block := response.read(_BLOCK):
                done += len(block)
                progress(done, total)
                yield block
    except urllib.error.HTTPError as error:
        raise DataError(f"{url} cannot be fetched: {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url} cannot be reached ({reason}); is there a network?") from error
    if total is not None and done < total:
        raise DataError(f"{url} broke off after {done:,} of {total:,} bytes; try again.")


def extract(archive: Path, folder: str, destination: Path) -> Path:
    """Unpack the tar or zip file `archive` and move its `folder` into `destination`.

    It is unpacked in a temporary folder of `destination`, which is always removed.
    """
    target = destination / folder
    try:
        with tempfile.TemporaryDirectory(dir=destination, prefix=".unpacking-") as temporary:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as opened:
                    _check_names(opened.namelist(), archive)
                    opened.extractall(temporary)
            else:
                with tarfile.open(archive) as tar:
                    _check_names(tar.getnames(), archive)
                    # Also refuses links that lead outside and anything but files and folders.
                    tar.extractall(temporary, filter="data")
            unpacked = Path(temporary) / folder
            if not unpacked.is_dir():
                raise DataError(f"{archive} holds no folder {folder}.")
            os.rename(unpacked, target)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(f"{archive} cannot be unpacked to {target}: {error}") from error
    return target


def _check_names(names: Sequence[str], archive: Path) -> None:
    for name in names:
        paths = (PurePosixPath(name), PureWindowsPath(name))
        if any(path.anchor or ".." in path.parts for path in paths):
            raise DataError(f"{archive} is not safe to unpack: {name!r} leads out of its folder.")


def _read_whole(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); delete {path.parent} and get it again."
        ) from error


def _read_lines(path: Path) -> list[str]:
    text = _read_whole(path).decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


# Shipped ----------------------------------------------------------------------------------------


def load_digits(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    return _load_shipped("digits", "digits.npz", mean=0.3045, std=0.3755)


def load_fashion(data_dir: Path | None = None, progress: OnProgress = silent) -> DataSet:
    return _load_shipped("fashion", "fashion-mnist-8000.npz", mean=0.2860, std=0.3530)


def _load_shipped(name: str, filename: str, mean: float, std: float) -> DataSet:
    """Read images [N, H, W] and interleave the classes, so that any prefix is a fair sample.

    The files store images class by class, because that compresses best.
    """
    wanted = ["classes", "train_images", "train_labels", "test_images", "test_labels"]
    with resources.as_file(resources.files("adaptcl.data") / "files" / filename) as path:
        arrays = read_npz(path, wanted)
    parts = []
    for part in ("train", "test"):
        labels = torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64))
        images = torch.from_numpy(arrays[f"{part}_images"]).unsqueeze(1)
        rank = torch.zeros_like(labels)
        for label in torch.unique(labels):
            rank[labels == label] = torch.arange(int((labels == label).sum()))
        order = torch.argsort(rank, stable=True)
        parts.append(Samples(images, labels, (mean,), (std,)).take(order))
    return DataSet(name, parts[0], parts[1], tuple(map(str, arrays["classes"])))


# CIFAR ------------------------------------------------------------------------------------------

_CIFAR_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar:
    """The files and constants in which CIFAR-10 and CIFAR-100 differ."""

    name: str
    archive: Archive
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    classes: int
    label_bytes: int
    """Bytes before the pixels. The last is the label; CIFAR-100 has a coarse label before it."""
    statistics: tuple[Numbers, Numbers]

    def load(self, data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
        """Read it from a packed file or from the official folder in `data_dir`."""
        path = self.archive.locate(self.name, data_dir)
        if path.is_file():
            dataset = read_packed(path, self.name, self.statistics, progress)
        else:
            train, test = (
                self._read([path / each for each in files]) for files in (self.train, self.test)
            )
            dataset = DataSet(self.name, train, test, tuple(_read_lines(path / self.names)))
        if len(dataset.classes) != self.classes or dataset.train.shape != _CIFAR_SHAPE:
            raise DataError(
                f"{path} is not {self.name}: it has {len(dataset.classes)} classes of images "
                f"{list(dataset.train.shape)}, not {self.classes} of {list(_CIFAR_SHAPE)}."
            )
        return dataset

    def _read(self, files: Sequence[Path]) -> Samples:
        record = self.label_bytes + _PIXELS
        contents = [_read_whole(file) for file in files]
        for file, content in zip(files, contents, strict=True):
            if len(content) == 0 or len(content) % record:
                raise DataError(
                    f"{file} is damaged: its {len(content):,} bytes are not whole records of "
                    f"{record}; delete {file.parent} and get it again."
                )
        records = np.frombuffer(b"".join(contents), dtype=np.uint8).reshape(-1, record)
        labels = torch.from_numpy(records[:, self.label_bytes - 1].astype(np.int64))
        # A copy: without the labels in between, and writable, which a view of bytes is not.
        pixels = records[:, self.label_bytes :].copy().reshape(-1, *_CIFAR_SHAPE)
        return Samples(torch.from_numpy(pixels), labels, *self.statistics)


CIFAR10 = Cifar(
    name="cifar10",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        checksum="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        packed=("cifar10.npz", "cifar10-jpeg.npz"),
    ),
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    names="batches.meta.txt",
    classes=10,
    label_bytes=1,
    statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)

CIFAR100 = Cifar(
    name="cifar100",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        checksum="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        packed=("cifar100.npz", "cifar100-jpeg.npz"),
    ),
    train=("train.bin",),
    test=("test.bin",),
    names="fine_label_names.txt",
    classes=100,
    label_bytes=2,
    statistics=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)

# Tiny-ImageNet ----------------------------------------------------------------------------------

TINY_IMAGENET = Archive(
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    checksum="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
    packed=("tiny-imagenet.npz", "tiny-imagenet-jpeg.npz", "tinyimagenet32-jpeg.npz"),
)
_SIZE = 32
# Measured on images scaled to 32×32, which vary less than the originals of 64×64.
TINY_STATISTICS = ((0.4806, 0.4486, 0.3983), (0.2521, 0.2448, 0.2590))


def load_tiny_imagenet(data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
    """All 200 classes, from a packed file or from the official folder in `data_dir`."""
    name = "tiny-imagenet"
    path = TINY_IMAGENET.locate(name, data_dir)
    if path.is_file():
        return read_packed(path, name, TINY_STATISTICS, progress)
    ids = sorted(set(_read_lines(path / "wnids.txt")))
    parts = [
        (torch.tensor(labels), file_decoder(files, "RGB", (_SIZE, _SIZE)))
        for files, labels in (_training_files(path, ids), _validation_files(path, ids))
    ]
    shape = (3, _SIZE, _SIZE)
    return decode_parts(name, _class_names(path, ids), parts, shape, TINY_STATISTICS, progress)


def load_first_100(data_dir: Path | None, progress: OnProgress = silent) -> DataSet:
    """The first 100 classes, as the data set `tiny-imagenet-100`."""
    whole = load_tiny_imagenet(data_dir, progress)
    if len(whole.classes) < 100:
        raise DataError(f"tiny-imagenet-100 needs 100 classes, but there are {len(whole.classes)}.")
    train, test = (
        samples.take(torch.nonzero(samples.labels < 100).flatten())
        for samples in (whole.train, whole.test)
    )
    return DataSet("tiny-imagenet-100", train, test, whole.classes[:100])


def _training_files(folder: Path, ids: Sequence[str]) -> tuple[list[Path], list[int]]:
    by_class = [sorted((folder / "train" / each / "images").glob("*.JPEG")) for each in ids]
    counts = {len(files) for files in by_class}
    # The official set is balanced, so unequal classes reveal an unfinished copy.
    if len(counts) != 1 or 0 in counts:
        raise DataError(
            f"{folder / 'train'} is incomplete: its classes hold from {min(counts, default=0)} to "
            f"{max(counts, default=0)} images; delete {folder} and get it again."
        )
    labels = [label for label, files in enumerate(by_class) for _ in files]
    return [file for files in by_class for file in files], labels


def _validation_files(folder: Path, ids: Sequence[str]) -> tuple[list[Path], list[int]]:
    listing = folder / "val" / "val_annotations.txt"
    files, labels = [], []
    for line in _read_lines(listing):
        filename, wordnet_id, *_ = [*line.split("\t"), ""]
        if wordnet_id not in ids:
            raise DataError(f"{listing} names a class that wnids.txt does not: {line!r}.")
        files.append(folder / "val" / "images" / filename)
        labels.append(ids.index(wordnet_id))
    if not files:
        raise DataError(f"{listing} lists no images; delete {folder} and get it again.")
    return files, labels


def _class_names(folder: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The first synonym of each class in words.txt, or its id if it has none."""
    words = {}
    if (folder / "words.txt").is_file():
        for line in _read_lines(folder / "words.txt"):
            wordnet_id, _, synonyms = line.partition("\t")
            words[wordnet_id] = synonyms.partition(",")[0].strip()
    return tuple(words.get(wordnet_id) or wordnet_id for wordnet_id in ids)
