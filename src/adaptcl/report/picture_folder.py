"""A folder of pictures that a report draws: old ones go, and a user's files stay.

The folder records the name and checksum of each picture. The next report removes the pictures of
the last one, but no file that somebody else wrote or changed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adaptcl.storage import written_whole

_RECORD = ".drawn.json"
"""A file in the folder with the checksum of each picture drawn last, by name."""


@dataclass(frozen=True)
class SavedPictures:
    """What happened to a folder of pictures."""

    paths: tuple[Path, ...]
    """Pictures drawn now."""
    removed: tuple[str, ...]
    """Names of earlier pictures that this report does not have."""
    others: tuple[str, ...]
    """Names of pictures that no report drew; they stay."""


def save_pictures(images: Mapping[str, bytes], folder: Path) -> SavedPictures:
    """Put pictures into a folder in place of those that the last report drew there."""
    folder.mkdir(parents=True, exist_ok=True)
    removed = tuple(name for name in _drawn_last(folder) if name not in images)
    for name in removed:
        (folder / name).unlink()
    # The record comes first, so that no picture is left without a record, whatever happens.
    record = {name: zlib.crc32(image) for name, image in images.items()}
    _save(json.dumps(record, indent=1).encode(), folder / _RECORD)
    for name, image in images.items():
        _save(image, folder / name)
    others = sorted(path.name for path in folder.glob("*.png") if path.name not in images)
    return SavedPictures(tuple(folder / name for name in images), removed, tuple(others))


def _drawn_last(folder: Path) -> list[str]:
    """Recorded names whose files have not changed since they were drawn."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        return [
            name
            for name, checksum in sorted(record.items())
            if re.fullmatch(r"[^/\\]+\.png", name) and _checksum(folder / name) == checksum
        ]
    except (OSError, ValueError, AttributeError):
        return []


def _checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.is_file() and not path.is_symlink() else None


def _save(content: bytes, path: Path) -> None:
    with written_whole(path) as file:
        file.write(content)
