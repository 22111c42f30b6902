"""Data sets by name: known ones, paths, and the functions of a user."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptcl.data import DATASETS, DataSet, get, load, pack
from adaptcl.errors import DataError, SettingError


def test_shipped_data_sets_load_without_a_folder_and_others_say_how_to_get_them(
    tmp_path: Path,
) -> None:
    for name, source in DATASETS.items():
        if source.archive is None:
            assert load(name, None).name == name
        else:
            with pytest.raises(DataError, match="adaptcl data get"):
                load(name, None)
            with pytest.raises(DataError, match=f"adaptcl data get .* --data-dir {tmp_path}"):
                load(name, tmp_path)


def test_a_packed_file_is_loaded_by_its_path(tmp_path: Path, colour: DataSet) -> None:
    assert load(str(pack(colour, tmp_path / "waves.npz"))).classes == colour.classes


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'digits'"):
        load("digit")
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
    dataset = load("fashion")
    assert dataset.train.shape == (1, 28, 28)
    assert counts(dataset.train.labels) == [600] * 10
    assert counts(dataset.test.labels) == [200] * 10
    assert dataset.classes[9] == "Ankle boot"
    assert_normalised(dataset)


def test_digits_are_all_1797_with_a_balanced_test_part() -> None:
    dataset = load("digits")
    assert dataset.train.shape == (1, 8, 8)
    assert len(dataset.train) == 1437
    assert counts(dataset.test.labels) == [36] * 10
    assert max(counts(dataset.train.labels)) - min(counts(dataset.train.labels)) <= 10
    assert_normalised(dataset)


@pytest.mark.parametrize("name", ["fashion", "digits"])
def test_a_prefix_of_a_shipped_data_set_is_a_fair_sample_and_labels_fit(name: str) -> None:
    dataset = load(name)
    assert sorted(dataset.train.labels[:10].tolist()) == list(range(10))
    assert counts(dataset.test.labels[:100]) == [10] * 10
    # Classifying by the nearest class mean works, so images and labels belong together.
    train, labels = dataset.train.batch(torch.arange(len(dataset.train)))
    means = torch.stack([train[labels == label].mean(0) for label in range(10)]).flatten(1)
    test, truth = dataset.test.batch(torch.arange(len(dataset.test)))
    nearest = torch.cdist(test.flatten(1), means).argmin(1)
    assert (nearest == truth).float().mean() > 0.6


# Functions of a user ----------------------------------------------------------------------------

MODULE = """
import torch
from torch.utils.data import TensorDataset
from adaptcl.data import DataSet, Samples

def pair(data_dir):
    labels = torch.tensor([0, 1, 2])
    return TensorDataset(torch.eye(3), labels), (torch.eye(3), labels)

def whole(data_dir):
    samples = Samples(torch.eye(2), torch.tensor([0, 1]))
    return DataSet(str(data_dir), samples, samples, ("left", "right"))

def triple(data_dir):
    return 1, 2, 3

def ragged(data_dir):
    return [(torch.zeros(2), 0), (torch.zeros(3), 0)], []

def nothing_taken():
    return pair(None)

def nothing_given(data_dir):
    pass

def number(data_dir):
    return 3

def arrays(data_dir):
    return torch.eye(3), torch.tensor([0, 1, 2])

def fails(data_dir):
    return data_dir / "train", data_dir / "test"

def frames(data_dir):
    import pandas
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]})
    return frame, frame[["label", "b", "a"]]

def from_csv(data_dir):
    return open(data_dir / "data.csv").read(), None

def training_only(data_dir):
    return (torch.eye(3), torch.tensor([0, 1, 2])), None

constant = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `adaptcl_test_pets.data` of a user."""
    package = tmp_path / "adaptcl_test_pets"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(MODULE)
    (package / "broken.py").write_text("import a_module_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    return "adaptcl_test_pets.data"


def test_a_factory_may_return_a_train_and_a_test_part(module: str) -> None:
    dataset = load(f"{module}:pair", None)
    assert dataset.name == f"{module}:pair"
    assert dataset.classes == ("0", "1", "2")
    assert torch.equal(dataset.train.inputs, dataset.test.inputs)


def test_frames_of_a_factory_are_matched_by_the_names_of_their_columns(module: str) -> None:
    dataset = load(f"{module}:frames", None)
    assert torch.equal(dataset.train.inputs, dataset.test.inputs)


def test_a_factory_needs_a_test_part_only_where_one_is_used(module: str) -> None:
    assert len(load(f"{module}:training_only", needs_test=False).train) == 3
    with pytest.raises(DataError, match=f"^{module}:training_only has no test part; add it, or"):
        load(f"{module}:training_only")


def test_a_file_that_a_factory_does_not_find_is_one_sentence(module: str, tmp_path: Path) -> None:
    sentence = f"^{module}:from_csv does not find '.*/data.csv'; it was called with --data-dir /"
    with pytest.raises(DataError, match=sentence):
        load(f"{module}:from_csv", tmp_path)


def test_a_table_in_a_file_needs_a_function_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("age,bmi\n")
    with pytest.raises(SettingError, match=r"data\.csv is a file, but only \.npz"):
        load(str(tmp_path / "data.csv"))


def test_a_factory_is_given_the_data_folder_and_may_return_a_data_set(
    module: str, tmp_path: Path
) -> None:
    dataset = load(f"{module}:whole", tmp_path)
    assert dataset.name == str(tmp_path)
    assert dataset.classes == ("left", "right")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("adaptcl_test_pets.data:absent", "has no absent"),
        ("adaptcl_test_pets.data:constant", "but a data set must be a function or a class"),
        ("adaptcl_test_pets.absent:x", "There is no module adaptcl_test_pets.absent"),
    ],
)
def test_what_is_no_function_is_named(module: str, name: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        load(name)


def test_functions_of_pythons_own_are_not_called(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="os is a module of Python's standard library"):
        load("os:system", Path(f"touch {tmp_path}/called"))
    assert not (tmp_path / "called").exists()


def test_an_error_within_the_users_module_is_shown_as_it_is(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_nobody_has"):
        load("adaptcl_test_pets.broken:x")


def test_a_factory_that_returns_something_else_is_refused(module: str) -> None:
    for function, kind in (
        ("triple", "a tuple of 3"),
        ("nothing_given", "None"),
        ("number", "an int"),
    ):
        with pytest.raises(DataError) as refused:
            load(f"{module}:{function}")
        assert str(refused.value) == (
            f"{module}:{function} returned {kind}, not a DataSet or a pair (train, test)."
        )


def test_the_part_that_cannot_be_used_is_named(module: str) -> None:
    with pytest.raises(
        DataError, match=f"^The training part that {module}:ragged returned cannot .*: Sample 1"
    ):
        load(f"{module}:ragged")
    with pytest.raises(DataError, match=r"^The training part .* give a pair \(inputs, labels\)\.$"):
        load(f"{module}:arrays")


def test_a_factory_that_takes_something_else_is_told_how_it_is_called(module: str) -> None:
    with pytest.raises(SettingError) as refused:
        load(f"{module}:nothing_taken")
    assert str(refused.value) == (
        f"{module}:nothing_taken is called as nothing_taken(data_dir) and must return a DataSet "
        "or a pair (train, test), but it is defined as nothing_taken()."
    )


def test_an_error_inside_a_factory_is_shown_as_it_is_with_a_note_of_the_call(module: str) -> None:
    with pytest.raises(TypeError, match="unsupported operand") as failed:
        load(f"{module}:fails", None)
    assert failed.value.__notes__ == [
        f"This happened in {module}:fails, which was called as fails(None).",
        "It was called with no --data-dir; give --data-dir DIR if it reads files.",
    ]
