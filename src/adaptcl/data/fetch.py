"""Fetching one file over the network: checked, and there only when it is whole."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from adaptcl.data.atomic import written_whole
from adaptcl.data.progress import Progress, silent
from adaptcl.errors import DataError, SettingError

BLOCK = 1 << 18
SILENCE = 30.0
"""Seconds without a byte after which a server counts as gone."""
ALGORITHMS = {32: "md5", 64: "sha256"}


def fetch(url: str, checksum: str, destination: Path, progress: Progress = silent) -> Path:
    """The file at `url` as `destination`, with the MD5 or SHA-256 `checksum` (hexadecimal).

    A file that is already there with this checksum is left as it is. Otherwise the download goes
    to a temporary file beside it and takes its name only after the check; on any error, Ctrl-C
    included, nothing is left behind.
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


def _blocks(url: str, progress: Progress) -> Iterator[bytes]:
    """The body of `url`, piece by piece; whatever the network does wrong is a DataError."""
    try:
        with urllib.request.urlopen(url, timeout=SILENCE) as response:
            yield from _read(response, url, progress)
    except urllib.error.HTTPError as error:
        raise DataError(f"{url} cannot be fetched: {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url} cannot be reached ({reason}); is there a network?") from error


def _read(response: IO[bytes], url: str, progress: Progress) -> Iterator[bytes]:
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
