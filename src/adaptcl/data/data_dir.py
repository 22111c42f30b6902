"""The data folder: finding a known data set in it and reading its files.

A data set lies there either packed in one file or in its official layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from adaptcl.errors import DataError

OnProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total) in bytes or images; total is None if it is unknown."""


def silent(done: int, total: int | None) -> None:
    """The progress callback that shows nothing."""


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
