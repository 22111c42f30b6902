"""The commands `adaptcl data get` and `adaptcl data pack`."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptcl import data
from adaptcl.errors import SettingError
from adaptcl.report.progress import bar
from adaptcl.report.wording import volume


def download_data(options: argparse.Namespace) -> None:
    with bar(f"fetching {options.name}", in_bytes=True) as progress:
        path = data.get(options.name, Path(options.data_dir), options.url, progress)
    print(f"{options.name} is in {path}.")


def pack_data(options: argparse.Namespace) -> None:
    quality = _quality(options.quality)
    file = Path(options.file)
    with bar(f"reading {options.name}") as progress:
        source = data.load(
            options.name, Path(options.data_dir) if options.data_dir else None, progress
        )
    with bar(f"packing {options.name}") as progress:
        data.pack(source, file, quality, progress)
    how = "as PNG, without loss; --quality makes it smaller"
    if quality is not None:
        how = f"as JPEG of quality {quality}, which loses a little of every image"
    print(f"{options.name} is packed in {file} ({volume(file.stat().st_size)}), {how}.")


def _quality(text: str) -> int | None:
    if text == "lossless":
        return None
    if not text.isdecimal():
        raise SettingError(
            f"quality is {text!r}, but it must be a whole number from 1 to 100, or lossless."
        )
    return int(text)
