"""Where a result comes from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from adaptcl.data import DATASETS
from adaptcl.errors import DataError, SettingError
from paper.result import data_sha256, provenance


def test_the_hash_is_that_of_the_file_the_data_is_read_from(tmp_path: Path) -> None:
    (tmp_path / "cifar10-jpeg.npz").write_bytes(b"images")
    assert data_sha256("cifar10", tmp_path) == hashlib.sha256(b"images").hexdigest()


def test_of_a_folder_all_files_count(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    folder.mkdir()
    (folder / "wnids.txt").write_text("one")
    first = data_sha256("tiny-imagenet-100", tmp_path)
    (folder / "words.txt").write_text("two")
    assert data_sha256("tiny-imagenet-100", tmp_path) != first


def test_every_data_set_known_by_name_has_a_place(tmp_path: Path) -> None:
    for name, source in DATASETS.items():
        if source.archive is None:
            assert data_sha256(name, tmp_path)
        else:
            with pytest.raises(DataError, match=str(tmp_path)):
                data_sha256(name, tmp_path)


def test_data_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="known by name"):
        data_sha256("folder:images", tmp_path)


def test_on_a_cpu_precision_is_full_whatever_was_asked_for() -> None:
    made = provenance("cpu", "bf16", "")
    assert made.precision == "float32"
    assert made.device.startswith("cpu (")
