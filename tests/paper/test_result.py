"""Where a result comes from."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from adaptcl.data import DATASETS
from adaptcl.errors import DataError, SettingError
from paper import result as module
from paper.result import commit, data_sha256, provenance


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


def test_without_git_the_commit_is_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ADAPTCL_COMMIT", "abc123")
    assert commit() == "abc123"
    monkeypatch.delenv("ADAPTCL_COMMIT")
    assert commit() == "unknown"


def test_a_repository_around_the_package_that_does_not_track_it_has_not_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "adaptcl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(module, "_PACKAGE", package)
    monkeypatch.delenv("ADAPTCL_COMMIT", raising=False)
    assert commit() == "unknown"


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(SettingError, match=f"device is '{device}'"):
        provenance(device, "tf32", "")


def test_on_a_cpu_precision_is_full_whatever_was_asked_for() -> None:
    made = provenance("cpu", "bf16", "")
    assert made.precision == "float32"
    assert made.device.startswith("cpu (")
