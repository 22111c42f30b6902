"""Files that a report leaves: replaced whole, and cleared away only if a report wrote them.

A folder of pictures remembers which it was given and with which content, so that the next
comparison drawn there does not stand among pictures of the last one, and nobody loses a picture
of his own.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RECORD = ".drawn.json"
"""In a folder of pictures: the checksum of each that was drawn last, by name."""


@dataclass(frozen=True)
class Drawn:
    """What became of a folder of pictures."""

    paths: tuple[Path, ...]
    """Those drawn now."""
    removed: tuple[str, ...]
    """Names of pictures of the report before that has no place in this one."""
    others: tuple[str, ...]
    """Names of pictures that are somebody else's, and still there."""


def save(content: bytes, path: Path) -> None:
    """Whoever looks at the file meanwhile sees the old one or the new one, never half of one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def save_pictures(images: Mapping[str, bytes], folder: Path) -> Drawn:
    """Put pictures into a folder, in place of those that were put there last."""
    folder.mkdir(parents=True, exist_ok=True)
    removed = tuple(name for name in _drawn_last(folder) if name not in images)
    for name in removed:
        (folder / name).unlink()
    # First the record: whatever happens between, no picture is left that nobody owns.
    record = {name: zlib.crc32(image) for name, image in images.items()}
    save(json.dumps(record, indent=1).encode(), folder / _RECORD)
    for name, image in images.items():
        save(image, folder / name)
    others = sorted(path.name for path in folder.glob("*.png") if path.name not in images)
    return Drawn(tuple(folder / name for name in images), removed, tuple(others))


def _drawn_last(folder: Path) -> list[str]:
    """Names on record whose files are still as they were drawn."""
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
