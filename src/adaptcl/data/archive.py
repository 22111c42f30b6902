"""Archives of official data sets, and unpacking one so that it can do no harm.

Nothing of an archive lands outside its folder, and the folder appears only when it is complete.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from adaptcl.errors import DataError


@dataclass(frozen=True)
class Archive:
    """Where an official archive is, how to know it is the right one, and what it unpacks to."""

    url: str
    checksum: str
    """MD5 or SHA-256, in hexadecimal."""
    folder: str

    @property
    def filename(self) -> str:
        """Name of the archive file itself."""
        return self.url.rpartition("/")[2]


def extract(archive: Path, folder: str, destination: Path) -> Path:
    """Unpack the tar or zip file `archive` and put its `folder` into `destination`.

    Unpacking happens in a temporary folder of `destination`, which is always removed.
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
