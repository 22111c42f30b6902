"""Plain .npz files: arrays as NumPy's users have them, and all that can be wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptcl.data import load
from adaptcl.data.samples import channel_statistics
from adaptcl.errors import DataError

DRAW = np.random.default_rng(0)
LABELS: NDArray[np.int64] = np.arange(12) % 3


def written(path: Path, **changes: Any) -> str:
    """A sound file of floats, with some of its arrays replaced; None leaves one out."""
    arrays = {
        "x_train": DRAW.normal(size=(12, 5)).astype(np.float32),
        "y_train": LABELS,
        "x_test": DRAW.normal(size=(12, 5)).astype(np.float32),
        "y_test": LABELS,
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def test_floats_are_used_as_they_are(tmp_path: Path) -> None:
    inputs = DRAW.normal(size=(12, 5))
    read = load(written(tmp_path / "mine.npz", x_train=inputs))
    assert torch.equal(read.train.inputs, torch.from_numpy(inputs).float())
    assert torch.equal(read.test.labels, torch.from_numpy(LABELS))
    assert (read.name, read.classes, read.train.mean) == ("mine", ("0", "1", "2"), None)


def test_images_come_in_every_usual_layout_and_are_normalised(tmp_path: Path) -> None:
    for shape in ((12, 8, 6), (12, 8, 6, 1), (12, 8, 6, 3), (12, 3, 8, 6)):
        check_layout(tmp_path, shape)


def check_layout(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = DRAW.integers(256, size=shape, dtype=np.uint8)
    path = written(tmp_path / "x.npz", x_train=images, x_test=images, y_train=LABELS[:, None])
    read = load(path)
    channels = 3 if 3 in shape else 1
    assert read.train.shape == (channels, 8, 6)
    first = images[0] if shape == (12, 3, 8, 6) else images[0].reshape(8, 6, channels)
    expected = first if shape == (12, 3, 8, 6) else first.transpose(2, 0, 1)
    assert np.array_equal(read.train.inputs[0].numpy(), expected)
    assert (read.test.mean, read.test.std) == channel_statistics(read.train.inputs)


def test_classes_may_have_names(tmp_path: Path) -> None:
    path = written(tmp_path / "x.npz", classes=np.array(["cat", "dog", "eel"]))
    assert load(path).classes == ("cat", "dog", "eel")


def test_a_file_needs_a_test_part_only_where_one_is_used(tmp_path: Path) -> None:
    path = written(tmp_path / "x.npz", x_test=None, y_test=None)
    assert len(load(path, needs_test=False).train) == 12
    with pytest.raises(DataError) as refused:
        load(path)
    assert str(refused.value) == (
        f"{path} has no test part (x_test and y_test); add it, or set holdout, the share of its "
        "samples that each worker holds back."
    )


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"y_test": None},
            r"x\.npz has no array y_test, only x_test, x_train, y_train; it must be",
        ),
        ({"y_train": LABELS[:-1]}, r"x_train and y_train cannot be used: There are 12 inputs but"),
        ({"y_test": LABELS + 0.5}, r"x_test and y_test cannot be used: Labels must be"),
        ({"x_test": np.zeros((12, 4), np.float32)}, r"training inputs have the shape \[5\] but"),
        ({"x_test": np.zeros((12, 5), np.int64)}, r"x_train is float32 but x_test int64"),
        ({"classes": np.array(["cat"])}, r"a training label is 2, but with 1 classes"),
        ({"columns": np.array([*"abcda"])}, r"columns names a column twice"),
    ]
    for changes, sentence in wrong:
        with pytest.raises(DataError, match=sentence):
            load(written(tmp_path / "x.npz", **changes))


def test_a_file_without_training_data_is_told_what_it_lacks_and_what_it_holds(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "mine.npz", X=LABELS, y=LABELS)
    with pytest.raises(DataError, match="has no array x_train, only X, y; it must be a data set"):
        load(str(tmp_path / "mine.npz"))


def test_nothing_in_a_file_is_ever_unpickled(tmp_path: Path) -> None:
    objects = np.array([object()] * 12)
    with pytest.raises(DataError, match="allow_pickle=False"):
        load(written(tmp_path / "x.npz", x_train=objects))
