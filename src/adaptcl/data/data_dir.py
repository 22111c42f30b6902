"""How fetching and decoding tell how far they are: a plain callback, so anything can listen."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from adaptcl.data.samples import Samples
from adaptcl.errors import DataError

OnProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total): bytes or images; total is None where it is not known."""


def silent(done: int, total: int | None) -> None:
    """Progress nobody watches."""


# What data is recognised by, without being kept.


def checksums(samples: Samples) -> tuple[int, int]:
    """Of all inputs and of all labels, in their order."""
    return _checksum(samples.inputs), _checksum(samples.labels)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)


# Finding a known data set in a data folder, packed in one file or in its official layout.


def locate(name: str, data_dir: Path | None, packed: Sequence[str], folder: str) -> Path:
    """The packed file (the first of `packed` that is there) or else the official folder."""
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
    """The content of a file that belongs to an official layout."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); delete {path.parent} and get it again."
        ) from error


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file that belongs to an official layout."""
    text = read_whole(path).decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
