from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptcl.data import DATASETS, DataSet, get, load, pack
from adaptcl.data.sources import load_digits, load_fashion
from adaptcl.errors import DataError, SettingError


def test_the_known_data_sets_are_listed_under_their_own_names() -> None:
    assert list(DATASETS) == [
        "fashion",
        "digits",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "tiny-imagenet-100",
    ]
    assert all(name == source.name and source.summary for name, source in DATASETS.items())


def test_shipped_data_sets_load_without_a_data_folder() -> None:
    shipped = [source for source in DATASETS.values() if source.archive is None]
    assert [load(source.name, None).name for source in shipped] == ["fashion", "digits"]


def test_other_data_sets_say_how_to_get_them(tmp_path: Path) -> None:
    for source in DATASETS.values():
        if source.archive is not None:
            with pytest.raises(DataError, match="adaptcl data get"):
                load(source.name, None)
            with pytest.raises(DataError, match=f"adaptcl data get .* --data-dir {tmp_path}"):
                load(source.name, tmp_path)


def test_a_folder_of_images_is_loaded_by_its_path(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "only").mkdir(parents=True)
        Image.new("L", (3, 3)).save(tmp_path / part / "only" / "1.png")
    assert load(f"folder:{tmp_path}").classes == ("only",)


def test_a_packed_file_is_loaded_by_its_path(tmp_path: Path, colour: DataSet) -> None:
    assert load(str(pack(colour, tmp_path / "waves.npz"))).classes == colour.classes


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    for name in ("cifar", "", "a/b:c", "no such"):
        with pytest.raises(SettingError, match="there are fashion, digits, cifar10"):
            load(name)


@pytest.fixture
def small_archive(
    tmp_path: Path, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A small cifar-100-binary.tar.gz whose checksum DATASETS expects, elsewhere on the disk."""
    folder = tmp_path / "elsewhere" / "cifar-100-binary"
    folder.mkdir(parents=True)
    labels = np.zeros((40, 2), dtype=np.uint8)
    records = np.concatenate([labels, pixels], axis=1).tobytes()
    (folder / "train.bin").write_bytes(records)
    (folder / "test.bin").write_bytes(records)
    (folder / "fine_label_names.txt").write_text("\n".join(str(n) for n in range(100)))
    file = folder.parent / "cifar-100-binary.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, folder.name)
    source = DATASETS["cifar100"]
    assert source.archive is not None
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    archive = replace(source.archive, url=file.as_uri(), checksum=checksum)
    monkeypatch.setitem(DATASETS, "cifar100", replace(source, archive=archive))
    return file


def test_getting_a_data_set_makes_it_loadable_and_leaves_only_its_folder(
    small_archive: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    folder = get("cifar100", data_dir)
    assert folder == data_dir / "cifar-100-binary"
    assert list(data_dir.iterdir()) == [folder]
    assert len(load("cifar100", data_dir).train) == 40


def test_getting_it_again_fetches_nothing(small_archive: Path, tmp_path: Path) -> None:
    first = get("cifar100", tmp_path / "data")
    small_archive.unlink()
    assert get("cifar100", tmp_path / "data") == first


def test_an_archive_put_there_by_hand_is_used_and_kept(small_archive: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    by_hand = small_archive.rename(data_dir / small_archive.name)
    get("cifar100", data_dir)
    assert by_hand.exists()


def test_the_same_archive_can_come_from_another_address(
    small_archive: Path, tmp_path: Path
) -> None:
    moved = small_archive.rename(tmp_path / "mirror.tar.gz")
    with pytest.raises(DataError):
        get("cifar100", tmp_path / "data")
    assert get("cifar100", tmp_path / "data", url=moved.as_uri()).is_dir()


def test_another_archive_from_that_address_is_refused(small_archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"anything")
    with pytest.raises(DataError, match="damaged or another file"):
        get("cifar100", tmp_path / "data", url=other.as_uri())
    assert list((tmp_path / "data").iterdir()) == []


def test_what_cannot_be_got_is_answered_with_what_can(tmp_path: Path) -> None:
    for name, reason in (("digits", "is shipped"), ("mnist", "not known")):
        with pytest.raises(SettingError, match=f"{reason}.*; those to get are cifar10, cifar100"):
            get(name, tmp_path)


def counts(labels: torch.Tensor) -> list[int]:
    return torch.bincount(labels, minlength=10).tolist()


def assert_normalised(dataset: DataSet) -> None:
    inputs, _ = dataset.train.batch(torch.arange(len(dataset.train)))
    assert inputs.mean().item() == pytest.approx(0, abs=0.02)
    assert inputs.std().item() == pytest.approx(1, abs=0.02)


def test_fashion_is_6000_and_2000_balanced_images() -> None:
    dataset = load_fashion()
    assert dataset.train.shape == (1, 28, 28)
    assert counts(dataset.train.labels) == [600] * 10
    assert counts(dataset.test.labels) == [200] * 10
    assert dataset.classes[9] == "Ankle boot"
    assert_normalised(dataset)


def test_digits_are_all_1797_with_a_balanced_test_part() -> None:
    dataset = load_digits()
    assert dataset.train.shape == (1, 8, 8)
    assert len(dataset.train) == 1437
    assert counts(dataset.test.labels) == [36] * 10
    assert max(counts(dataset.train.labels)) - min(counts(dataset.train.labels)) <= 10
    assert_normalised(dataset)


@pytest.mark.parametrize("load", [load_fashion, load_digits])
def test_a_prefix_of_a_shipped_data_set_is_a_fair_sample_and_labels_fit(
    load: Callable[[], DataSet],
) -> None:
    dataset = load()
    assert sorted(dataset.train.labels[:10].tolist()) == list(range(10))
    assert counts(dataset.test.labels[:100]) == [10] * 10
    # Classifying by the nearest class mean works, so images and labels belong together.
    train, labels = dataset.train.batch(torch.arange(len(dataset.train)))
    means = torch.stack([train[labels == label].mean(0) for label in range(10)]).flatten(1)
    test, truth = dataset.test.batch(torch.arange(len(dataset.test)))
    nearest = torch.cdist(test.flatten(1), means).argmin(1)
    assert (nearest == truth).float().mean() > 0.6
