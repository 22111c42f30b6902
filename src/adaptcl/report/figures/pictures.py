"""Pictures: figures as PNG, SVG and PDF files, the same figure always with the same bytes.

A folder of pictures records the name and checksum of each. The next report removes the pictures of
the last one, but no file that somebody else wrote or changed.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaptcl.errors import SettingError
from adaptcl.storage import written_whole

_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By format, what a picture leaves out: date and program, so that equal figures are equal."""
FORMATS = tuple(_METADATA)
_DPI = 160
_RECORD = ".drawn.json"
"""A file in the folder with the checksum of each picture drawn last, by name."""


@dataclass(frozen=True)
class PictureOptions:
    """How figures become files."""

    formats: tuple[str, ...] = ("png",)
    titles: bool = True  # whether figures have titles. In a paper the caption says it.

    @classmethod
    def parse(cls, formats: str, *, titles: bool = True) -> PictureOptions:
        """Formats with commas between; `none` draws nothing."""
        named = [each.strip().lower() for each in formats.split(",")]
        for each in named if named != ["none"] else []:
            if each not in FORMATS:
                raise SettingError(
                    f"There is no figure format {each!r}; there are {', '.join(FORMATS)}, with "
                    "commas between, and none."
                )
        return cls(tuple(dict.fromkeys(named)) if named != ["none"] else (), titles)


class ShownFigure(Figure):
    """A figure that a notebook shows, also where no pyplot was imported."""

    def _repr_png_(self) -> bytes:
        return image_of(self, "png")


def image_of(figure: Figure, form: str) -> bytes:
    """The figure as a file of one of the `FORMATS`."""
    image = io.BytesIO()
    figure.savefig(image, format=form, dpi=_DPI, metadata=_METADATA[form])
    return image.getvalue()


@dataclass(frozen=True)
class SavedPictures:
    """What happened to a folder of pictures."""

    paths: tuple[Path, ...]  # pictures drawn now
    removed: tuple[str, ...]  # names of earlier pictures that this report does not have
    others: tuple[str, ...]  # names of pictures that no report drew; they stay


def save_pictures(images: Mapping[str, bytes], folder: Path) -> SavedPictures:
    """Put pictures into a folder in place of those that the last report drew there."""
    removed = tuple(name for name in _drawn_last(folder) if name not in images)
    for name in removed:
        (folder / name).unlink()
    # The record comes first, so that no picture is left without a record, whatever happens.
    record = {name: zlib.crc32(image) for name, image in images.items()}
    _save(json.dumps(record, indent=1).encode(), folder / _RECORD)
    for name, image in images.items():
        _save(image, folder / name)
    others = sorted(path.name for path in folder.iterdir() if _is_other(path, images))
    return SavedPictures(tuple(folder / name for name in images), removed, tuple(others))


def _is_other(path: Path, images: Mapping[str, bytes]) -> bool:
    return path.suffix.removeprefix(".") in FORMATS and path.name not in images


def _drawn_last(folder: Path) -> list[str]:
    """Recorded names whose files have not changed since they were drawn."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        return [
            name
            for name, checksum in sorted(record.items())
            if re.fullmatch(r"[^/\\]+\.(png|svg|pdf)", name)
            and _checksum(folder / name) == checksum
        ]
    except (OSError, ValueError, AttributeError):
        return []


def _checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.is_file() and not path.is_symlink() else None


def _save(content: bytes, path: Path) -> None:
    with written_whole(path) as file:
        file.write(content)
