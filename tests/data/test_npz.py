"""Plain .npz files: arrays as NumPy's users have them, and all that can be wrong with one."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptcl.data import DataSet, Samples, load
from adaptcl.data.npz import pack, read_packed
from adaptcl.data.samples import channel_statistics
from adaptcl.errors import DataError, SettingError

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


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"y_test": None}, r"x\.npz has no array y_test; it must be a data set as"),
        ({"y_train": LABELS[:-1]}, r"x_train and y_train cannot be used: There are 12 inputs but"),
        ({"y_test": LABELS + 0.5}, r"x_test and y_test cannot be used: Labels must be"),
        ({"x_test": np.zeros((12, 4), np.float32)}, r"training inputs have the shape \[5\] but"),
        ({"x_test": np.zeros((12, 5), np.int64)}, r"x_train is float32 but x_test int64"),
        ({"classes": np.array(["cat"])}, r"a training label is 2, but with 1 classes"),
    ]
    for changes, sentence in wrong:
        with pytest.raises(DataError, match=sentence):
            load(written(tmp_path / "x.npz", **changes))


def test_nothing_in_a_file_is_ever_unpickled(tmp_path: Path) -> None:
    objects = np.array([object()] * 12)
    with pytest.raises(DataError, match="allow_pickle=False"):
        load(written(tmp_path / "x.npz", x_train=objects))


Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def arrays(colour: DataSet, tmp_path: Path) -> Arrays:
    """The arrays of a sound packed file, for tests to damage."""
    with np.load(pack(colour, tmp_path / "sound.npz"), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def assert_same_images(read_back: DataSet, original: DataSet, tolerance: int) -> None:
    for ours, theirs in ((read_back.train, original.train), (read_back.test, original.test)):
        assert torch.equal(ours.labels, theirs.labels)
        difference = (ours.inputs.int() - theirs.inputs.int()).abs()
        assert difference.max() <= tolerance


@pytest.mark.parametrize("kind", ["colour", "gray"])
def test_packing_without_loss_gives_the_same_images_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    original: DataSet = request.getfixturevalue(kind)
    read_back = read_packed(pack(original, tmp_path / "waves.npz", quality=None))
    assert_same_images(read_back, original, tolerance=0)
    assert read_back.classes == original.classes
    assert read_back.name == "waves"


def test_packing_as_jpeg_gives_nearly_the_same_images_back(colour: DataSet, tmp_path: Path) -> None:
    assert_same_images(read_packed(pack(colour, tmp_path / "waves.npz", 95)), colour, tolerance=12)


def test_lower_quality_makes_a_smaller_file(tmp_path: Path) -> None:
    noise = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    samples = Samples(noise, torch.zeros(20, dtype=torch.int64))
    dataset = DataSet("noise", samples, samples, ("only",))
    low, high = (pack(dataset, tmp_path / f"{q}.npz", q).stat().st_size for q in (30, 95))
    assert low < high / 2


def test_images_are_normalised_by_their_own_statistics_unless_others_are_given(
    colour: DataSet, tmp_path: Path
) -> None:
    path = pack(colour, tmp_path / "waves.npz", None)
    default = read_packed(path)
    assert (default.train.mean, default.train.std) == channel_statistics(colour.train.inputs)
    assert (default.test.mean, default.test.std) == (default.train.mean, default.train.std)
    other = read_packed(path, "other", (0.5,) * 3, (0.25,) * 3)
    assert other.name == "other"
    assert other.test.mean == (0.5,) * 3


def test_more_than_256_classes_can_be_packed(tmp_path: Path) -> None:
    images = torch.zeros(300, 1, 2, 2, dtype=torch.uint8)
    samples = Samples(images, torch.arange(300))
    dataset = DataSet("many", samples, samples, tuple(str(n) for n in range(300)))
    assert torch.equal(
        read_packed(pack(dataset, tmp_path / "many.npz")).test.labels, torch.arange(300)
    )


def test_progress_rises_to_the_number_of_all_images(colour: DataSet, tmp_path: Path) -> None:
    written: list[tuple[int, int | None]] = []
    path = pack(colour, tmp_path / "x.npz", progress=lambda *call: written.append(call))
    seen: list[tuple[int, int | None]] = []
    read_packed(path, progress=lambda *call: seen.append(call))
    assert written[-1] == (18, 18)
    assert seen == [(12, 18), (18, 18)]


def test_the_documented_layout_is_what_is_written(arrays: Arrays, colour: DataSet) -> None:
    assert arrays["train_bytes"].dtype == np.uint8
    assert arrays["train_offsets"].dtype == np.int64
    assert arrays["train_labels"].dtype == np.uint8
    start, stop = arrays["test_offsets"][2:4]
    with Image.open(io.BytesIO(arrays["test_bytes"][start:stop].tobytes())) as image:
        assert image.format == "PNG"
        assert image.size == (32, 32)
    assert arrays["classes"].tolist() == list(colour.classes)


def one_image(size: tuple[int, int], mode: str, kind: str = "PNG") -> NDArray[np.uint8]:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind)
    return np.frombuffer(stream.getvalue(), dtype=np.uint8)


def with_last_image(arrays: Arrays, image: NDArray[np.uint8]) -> Arrays:
    """The arrays with the last test image replaced."""
    start = arrays["test_offsets"][-2]
    offsets = arrays["test_offsets"].copy()
    offsets[-1] = start + len(image)
    joined = np.concatenate([arrays["test_bytes"][:start], image])
    return {**arrays, "test_bytes": joined, "test_offsets": offsets}


DAMAGES: dict[str, tuple[Any, str]] = {
    "no labels": (
        lambda a: {name: a[name] for name in a if name != "test_labels"},
        "has no array test_labels",
    ),
    "too few labels": (
        lambda a: {**a, "train_labels": a["train_labels"][:-1]},
        "train_offsets must be 12 integers",
    ),
    "float labels": (
        lambda a: {**a, "train_labels": a["train_labels"].astype(float)},
        "train_labels must be a row of integers",
    ),
    "label beyond classes": (
        lambda a: {**a, "test_labels": a["test_labels"] + 1},
        "test_labels must lie between 0 and 2",
    ),
    "negative label": (
        lambda a: {**a, "test_labels": a["test_labels"].astype(np.int64) - 1},
        "test_labels must lie between 0 and 2",
    ),
    "no images": (lambda a: {**a, "test_labels": a["test_labels"][:0]}, "test_labels is empty"),
    "offsets that fall": (
        lambda a: {**a, "train_offsets": a["train_offsets"][[0, 2, 1, *range(3, 13)]]},
        "train_offsets must rise from 0",
    ),
    "unsigned offsets that fall": (
        lambda a: {
            **a,
            "train_offsets": a["train_offsets"][[0, 2, 1, *range(3, 13)]].astype(np.uint64),
        },
        "train_offsets must rise from 0",
    ),
    "bytes cut short": (
        lambda a: {**a, "test_bytes": a["test_bytes"][:-1]},
        "test_offsets must rise from 0",
    ),
    "bytes of another type": (
        lambda a: {**a, "test_bytes": a["test_bytes"].astype(np.int64)},
        "test_bytes must be a row of uint8",
    ),
    "scalar bytes": (
        lambda a: {**a, "test_bytes": np.uint8(1)},
        "test_bytes must be a row of uint8",
    ),
    "numbered classes": (
        lambda a: {**a, "classes": np.arange(3)},
        "classes must be a list of names",
    ),
    "pickled classes": (
        lambda a: {**a, "classes": np.array(["a", None, 3], dtype=object)},
        "cannot be read",
    ),
    "no image at all": (
        lambda a: with_last_image(a, np.arange(90, dtype=np.uint8)),
        "test image 5 cannot be decoded",
    ),
    "an image cut short": (
        lambda a: with_last_image(a, one_image((32, 32), "RGB", "JPEG")[:-40]),
        "test image 5 cannot be decoded",
    ),
    "an image of another size": (
        lambda a: with_last_image(a, one_image((31, 32), "RGB")),
        r"test image 5 has the shape \[3, 32, 31\], but the first \[3, 32, 32\]",
    ),
    "a gray image among colour ones": (
        lambda a: with_last_image(a, one_image((32, 32), "L")),
        r"test image 5 has the shape \[1, 32, 32\]",
    ),
    "an image of another kind": (
        lambda a: with_last_image(a, one_image((32, 32), "CMYK", "JPEG")),
        "test image 5 is CMYK",
    ),
    "a format that is not read": (
        lambda a: with_last_image(a, one_image((32, 32), "RGB", "BMP")),
        "test image 5 cannot be decoded",
    ),
}


def test_a_file_that_contradicts_itself_is_refused(arrays: Arrays, tmp_path: Path) -> None:
    path = tmp_path / "damaged.npz"
    for name, (damage, sentence) in DAMAGES.items():
        np.savez(path, **damage(arrays))
        with pytest.raises(DataError) as refused:
            read_packed(path)
        assert re.search(sentence, str(refused.value)), name


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, colour: DataSet) -> None:
    with pytest.raises(DataError, match="There is no file"):
        read_packed(tmp_path / "absent.npz")
    sound = pack(colour, tmp_path / "x.npz")
    cut = tmp_path / "cut.npz"
    cut.write_bytes(sound.read_bytes()[:-100])
    with pytest.raises(DataError, match="cut short"):
        read_packed(cut)
    flipped = bytearray(sound.read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    cut.write_bytes(flipped)
    with pytest.raises(DataError, match="cannot be read"):
        read_packed(cut)


def test_statistics_for_another_number_of_channels_are_refused(
    gray: DataSet, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="1 channels, not 3"):
        read_packed(pack(gray, tmp_path / "x.npz"), None, (0.5,) * 3, (0.5,) * 3)


def test_what_cannot_be_packed_is_refused_and_leaves_no_file(
    colour: DataSet, tmp_path: Path
) -> None:
    floats = Samples(torch.randn(2, 5), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="only uint8 images"):
        pack(DataSet("f", floats, floats, ("a", "b")), tmp_path / "x.npz")
    with pytest.raises(SettingError, match="between 1 and 100"):
        pack(colour, tmp_path / "x.npz", 0)
    with pytest.raises(SettingError, match=r"\.npz"):
        pack(colour, tmp_path / "x.zip")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_packing_leaves_nothing(colour: DataSet, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(colour, tmp_path / "x.npz", 50, interrupt)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_not_replaced(colour: DataSet, tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"years of work")
    with pytest.raises(SettingError, match="is there already; choose another name"):
        pack(colour, tmp_path / "mine.npz")
    assert (tmp_path / "mine.npz").read_bytes() == b"years of work"
