"""The data folder: getting official data sets into it, finding them, and reading their files.

A data set lies there either packed in one file or in its official layout.
A fetched file takes its name only after its checksum is verified. Nothing of an archive lands
outside its folder, and the folder appears only when it is complete.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TypeAlias
from urllib.parse import urlsplit

from adaptcl.errors import DataError, SettingError
from adaptcl.storage import written_whole

OnProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total) in bytes or images; total is None if it is unknown."""

BLOCK = 1 << 18
SILENCE = 30.0  # seconds without a byte after which a download fails
ALGORITHMS = {32: "md5", 64: "sha256"}


def silent(done: int, total: int | None) -> None:
    """The progress callback that shows nothing."""


def fetch(url: str, checksum: str, destination: Path, progress: OnProgress = silent) -> Path:
    """Download `url` to `destination` and verify its MD5 or SHA-256 `checksum` (hexadecimal).

    A file with this checksum that already exists is kept. Otherwise the download goes to a
    temporary file, which any error, Ctrl-C included, removes.
    """
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise SettingError(f"{url} cannot be fetched: only http, https and file addresses can.")
    algorithm = ALGORITHMS.get(len(checksum))
    if algorithm is None:
        raise SettingError(f"{checksum!r} is neither an MD5 nor a SHA-256 checksum.")
    if destination.is_file() and _checksum_of(destination, algorithm) == checksum.lower():
        return destination
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with written_whole(destination) as file:
            for block in _blocks(url, progress):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != checksum.lower():
                raise DataError(
                    f"{url} has the {algorithm} {digest.hexdigest()} instead of {checksum}: it "
                    "is damaged or another file, so it was not kept."
                )
    except OSError as error:
        raise DataError(f"{destination} cannot be written: {error.strerror or error}.") from error
    return destination


def _blocks(url: str, progress: OnProgress) -> Iterator[bytes]:
    """The body of `url` in blocks. Every network failure becomes a DataError."""
    try:
        with urllib.request.urlopen(url, timeout=SILENCE) as response:
            yield from _read(response, url, progress)
    except urllib.error.HTTPError as error:
        raise DataError(f"{url} cannot be fetched: {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url} cannot be reached ({reason}); is there a network?") from error


def _read(response: IO[bytes], url: str, progress: OnProgress) -> Iterator[bytes]:
    announced = getattr(response, "headers", {}).get("Content-Length")
    total = int(announced) if announced and announced.isdigit() else None
    done = 0
    while block := response.read(BLOCK):
        done += len(block)
        progress(done, total)
        yield block
    if total is not None and done < total:
        raise DataError(f"{url} broke off after {done:,} of {total:,} bytes; try again.")


def _checksum_of(file: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Archive:
    """An official archive: its address, its checksum and the folder it unpacks to."""

    url: str
    checksum: str  # MD5 or SHA-256, in hexadecimal
    folder: str

    @property
    def filename(self) -> str:
        return self.url.rpartition("/")[2]


def extract(archive: Path, folder: str, destination: Path) -> Path:
    """Unpack the tar or zip file `archive` and move its `folder` into `destination`.

    It is unpacked in a temporary folder of `destination`, which is always removed.
    """
    target = destination / folder
    try:
        with tempfile.TemporaryDirectory(dir=destination, prefix=".unpacking-") as temporary:
            _unpack(archive, Path(temporary))
            unpacked = Path(temporary) / folder
            if not unpacked.is_dir():
                raise DataError(f"{archive} holds no folder {folder}.")
            os.rename(unpacked, target)
    except OSError as error:
        raise DataError(f"{archive} cannot be unpacked to {target}: {error}") from error
    return target


def _unpack(archive: Path, folder: Path) -> None:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _check_names(opened.namelist(), archive)
                opened.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                _check_names(tar.getnames(), archive)
                # Also refuses links that lead outside and anything but files and folders.
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error


def _check_names(names: list[str], archive: Path) -> None:
    for name in names:
        paths = (PurePosixPath(name), PureWindowsPath(name))
        if any(path.anchor or ".." in path.parts for path in paths):
            raise DataError(f"{archive} is not safe to unpack: {name!r} leads out of its folder.")


def locate(name: str, data_dir: Path | None, packed: Sequence[str], folder: str) -> Path:
    """The path of a data set: the first of the `packed` files that exists, or else `folder`."""
    if data_dir is None:
        raise DataError(
            f"{name} needs a data folder: get it with `adaptcl data get {name} --data-dir DIR` "
            "and run with --data-dir DIR."
        )
    for filename in packed:
        if (data_dir / filename).is_file():
            return data_dir / filename
    if (data_dir / folder).is_dir():
        return data_dir / folder
    raise DataError(
        f"{data_dir} holds neither {packed[0]} nor the folder {folder}: get {name} with "
        f"`adaptcl data get {name} --data-dir {data_dir}`."
    )


def read_whole(path: Path) -> bytes:
    """The content of a file of an official layout."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); delete {path.parent} and get it again."
        ) from error


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file of an official layout."""
    text = read_whole(path).decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
