"""A worker's data mean to the server's model what the server's own data mean to it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from adaptcl.data import DataSet, Samples
from adaptcl.data.description import SampleForm
from adaptcl.engines.network.invitation import MismatchError
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.errors import DataError

WANTED = SampleForm((1, 20, 20), "uint8", (0.25,), (0.5,), ("apple", "bone", "cyst", "dot"))


def folder(
    root: Path, classes: Sequence[str], size: tuple[int, int] = (20, 20), mode: str = "L"
) -> LocalData:
    """A folder without a test part; all pixels of a class are ten times its place."""
    for place, name in enumerate(classes):
        (root / "train" / name).mkdir(parents=True)
        value = 10 * place
        pixel = value if mode == "L" else (value, value, value)
        Image.new(mode, size, pixel).save(root / "train" / name / "1.png")
    return LocalData.named(f"folder:{root}")


def held(labels: Sequence[int], classes: Sequence[str], *shape: int) -> LocalData:
    inputs = torch.zeros(len(labels), *(shape or (1, 20, 20)), dtype=torch.uint8)
    samples = Samples(inputs, torch.tensor(labels), (0.9,), (0.1,))
    return LocalData(DataSet("held", samples, samples, tuple(classes)))


def test_a_file_needs_a_test_part_only_if_its_owner_tests_on_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=np.zeros((4, 5), np.float32), y_train=np.arange(4) % 2)
    wanted = SampleForm((5,), "float32", None, None, ("0", "1"))
    assert len(LocalData.named(str(path)).fitted(wanted)) == 4
    with pytest.raises(DataError, match="has no test part"):
        LocalData.named(str(path), test_part=True)


def table(path: Path, columns: str) -> LocalData:
    """A table in which every number of a column is the place of its letter in the alphabet."""
    row = [ord(name) - ord("a") for name in columns]
    x, y = np.array([row, row], np.float32), np.arange(2)
    np.savez(path, x_train=x, y_train=y, columns=list(columns))
    return LocalData.named(str(path))


def test_columns_come_in_the_servers_order_and_others_are_refused_by_name(tmp_path: Path) -> None:
    wanted = SampleForm((3,), "float32", None, None, ("0", "1"), columns={"": ("a", "b", "c")})
    samples = table(tmp_path / "mine.npz", "cab").fitted(wanted)
    assert samples.inputs.tolist() == [[0, 1, 2]] * 2
    with pytest.raises(MismatchError, match="the server has, its frame lacks 'b' and has 'd' bes"):
        table(tmp_path / "other.npz", "adc").fitted(wanted)
    with pytest.raises(MismatchError, match=r"the server has, its frame lacks 'b'\.$"):
        table(tmp_path / "fewer.npz", "ac").fitted(wanted)


def test_a_test_part_that_nobody_asks_for_is_noticed(tmp_path: Path) -> None:
    lone = folder(tmp_path / "lone", ["apple"])
    both = folder(tmp_path / "both", ["apple"])
    (tmp_path / "both" / "test").mkdir()
    assert [lone.has_unused_tests, both.has_unused_tests] == [False, True]
    assert LocalData.named("digits").has_unused_tests
    assert not LocalData.named("digits", test_part=True).has_unused_tests
    assert not table(tmp_path / "mine.npz", "ab").has_unused_tests


def test_a_class_has_the_servers_number_whatever_else_lies_beside_it(tmp_path: Path) -> None:
    samples = folder(tmp_path, ["bone", "dot"]).fitted(WANTED)
    assert samples.labels.tolist() == [1, 3]
    assert samples.inputs[:, 0, 0, 0].tolist() == [0, 10]


def test_a_class_the_server_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    data = folder(tmp_path, ["bone", "cyst", "dot", "elbow"])
    with pytest.raises(MismatchError, match=r"'elbow', which the server does not know.*'apple'"):
        data.fitted(WANTED)


def test_a_class_without_a_picture_is_nothing_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "train" / "elbow").mkdir(parents=True)
    assert folder(tmp_path, ["bone"]).fitted(WANTED).labels.tolist() == [1]


def test_a_folder_that_is_called_by_a_number_is_still_a_name(tmp_path: Path) -> None:
    server = SampleForm((1, 20, 20), "uint8", None, None, ("0", "10", "2"))
    assert folder(tmp_path / "a", ["0", "2"]).fitted(server).labels.tolist() == [0, 2]
    with pytest.raises(MismatchError, match="the class '1'"):
        folder(tmp_path / "b", ["0", "1"]).fitted(server)


@pytest.mark.parametrize("here", ["caf\u00e9", "cafe\u0301"])
@pytest.mark.parametrize("there", ["caf\u00e9", "cafe\u0301"])
def test_a_name_is_the_same_however_a_file_system_spells_it(here: str, there: str) -> None:
    server = SampleForm((1, 20, 20), "uint8", None, None, ("bar", there))
    own = held([0, 0], [here])
    assert own.fitted(server).labels.tolist() == [1, 1]


@given(
    st.lists(st.text(max_size=3), min_size=1, max_size=6, unique_by=lambda text: text.casefold()),
    st.data(),
)
def test_every_sample_keeps_its_class(names: list[str], data: st.DataObject) -> None:
    names = [f"class {unicodedata.normalize('NFC', name)}" for name in names]
    own = data.draw(st.permutations(names))[: data.draw(st.integers(1, len(names)))]
    labels = data.draw(st.lists(st.integers(0, len(own) - 1), min_size=1))
    server = SampleForm((1, 2, 2), "uint8", None, None, tuple(names))
    fitted = held(labels, own, 1, 2, 2).fitted(server).labels.tolist()
    assert [names[label] for label in fitted] == [own[label] for label in labels]


def test_classes_without_names_are_told_apart_by_their_numbers() -> None:
    assert held([0, 2], ["0", "1", "2"]).fitted(WANTED).labels.tolist() == [0, 2]
    with pytest.raises(MismatchError, match=r"a label 4, but the server has 4 classes.*0 to 3"):
        held([0, 4], ["0", "1", "2", "3", "4"]).fitted(WANTED)


def test_pictures_get_the_servers_size_and_colours(tmp_path: Path) -> None:
    gray = folder(tmp_path / "gray", ["bone"], (40, 33))
    colour = folder(tmp_path / "colour", ["bone"], (40, 33), "RGB")
    in_colour = SampleForm((3, 10, 20), "uint8", None, None, WANTED.classes)
    assert gray.fitted(WANTED).shape == colour.fitted(WANTED).shape == (1, 20, 20)
    assert gray.fitted(in_colour).shape == colour.fitted(in_colour).shape == (3, 10, 20)


def test_the_same_picture_is_the_same_input_on_every_machine(tmp_path: Path) -> None:
    """Whatever lies beside it."""
    alone = folder(tmp_path / "alone", ["apple"]).fitted(WANTED)
    among = folder(tmp_path / "among", ["apple", "bone", "cyst"]).fitted(WANTED)
    first = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(alone.batch(first)[0], among.batch(first)[0])
    assert (alone.mean, alone.std) == ((0.25,), (0.5,))


def test_images_of_a_function_are_normalised_as_the_servers_are() -> None:
    assert held([0], ["apple"]).fitted(WANTED).mean == (0.25,)
    scaled = SampleForm(WANTED.shape, "uint8", None, None, WANTED.classes)
    assert held([0], ["apple"]).fitted(scaled).mean is None


def test_other_data_of_another_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(
        MismatchError, match=r"are uint8 \[1, 33, 40\].* server uint8 \[1, 20, 20\]"
    ):
        held([0], ["apple"], 1, 33, 40).fitted(WANTED)


def test_data_of_another_kind_is_refused(tmp_path: Path) -> None:
    floats = SampleForm((1, 20, 20), "float32", None, None, WANTED.classes)
    with pytest.raises(MismatchError, match=r"are uint8 .* server float32 \[1, 20, 20\]"):
        held([0], ["apple"]).fitted(floats)
    with pytest.raises(MismatchError, match=r"uint8, those of the server are float32"):
        folder(tmp_path, ["apple"]).fitted(floats)
    with pytest.raises(MismatchError, match=r"1 or 3 channels, those of the server have 4"):
        LocalData.named(f"folder:{tmp_path}").fitted(
            SampleForm((4, 9, 9), "uint8", None, None, ("apple",))
        )


def test_pictures_are_decoded_once_for_several_runs(tmp_path: Path) -> None:
    data = folder(tmp_path, ["apple"])
    before = data.fitted(WANTED)
    (tmp_path / "train" / "apple" / "1.png").unlink()
    assert data.fitted(WANTED) is before


def test_a_folder_without_pictures_to_train_on_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*train"):
        LocalData.named(f"folder:{tmp_path}")
    (tmp_path / "train" / "apple").mkdir(parents=True)
    (tmp_path / "train" / "apple" / "1.png").write_bytes(b"none")
    with pytest.raises(DataError, match=r"1\.png cannot be decoded"):
        LocalData.named(f"folder:{tmp_path}")
