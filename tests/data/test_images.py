"""Images in folders and in packed files, and all that can be wrong with them."""

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
from PIL import EpsImagePlugin, Image
from torch import Tensor

from adaptcl.data import DataSet, Samples
from adaptcl.data.images import ImageFolder, pack, read_folder, read_packed
from adaptcl.data.samples import channel_statistics
from adaptcl.errors import DataError, SettingError


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Gray cats and dogs, 6 wide and 4 high."""
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            save(tmp_path / "pets" / part / name / "1.png", Image.new("L", (6, 4), 50 * number))
    save(tmp_path / "pets" / "train" / "dog" / "2.PNG", Image.new("L", (6, 4), 99))
    return tmp_path / "pets"


def test_folders_are_classes_and_the_root_names_the_data_set(root: Path) -> None:
    dataset = read_folder(root)
    assert dataset.name == "pets"
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 50, 99]
    assert dataset.test.labels.tolist() == [0, 1]


def test_one_colour_image_makes_all_of_them_rgb(root: Path) -> None:
    save(root / "test" / "dog" / "2.jpg", Image.new("RGB", (6, 4), (255, 0, 0)))
    dataset = read_folder(root)
    assert dataset.train.shape == (3, 4, 6)
    assert torch.equal(dataset.train.inputs[:, 0], dataset.train.inputs[:, 2])


def test_all_images_get_the_size_of_the_first(root: Path) -> None:
    save(root / "test" / "dog" / "2.png", Image.new("L", (30, 20)))
    assert read_folder(root).test.shape == (1, 4, 6)


def test_photographs_taken_sideways_are_turned_upright(root: Path) -> None:
    sideways = Image.new("L", (4, 6))
    exif = sideways.getexif()
    exif[0x0112] = 6
    sideways.save(root / "train" / "cat" / "0.jpg", exif=exif)
    assert read_folder(root).train.shape == (1, 4, 6)


def test_other_files_are_passed_over(root: Path) -> None:
    (root / "train" / "cat" / "notes.txt").write_text("meow")
    (root / "train" / ".cache").mkdir()
    assert len(read_folder(root).train) == 3


def test_a_part_can_be_looked_at_alone_and_decoded_as_somebody_else_wants_it(root: Path) -> None:
    (root / "test" / "cat" / "1.png").write_bytes(b"nothing")
    found = ImageFolder.look(root / "train")
    assert (found.classes, found.labels.tolist(), found.gray) == (("cat", "dog"), [0, 1, 1], True)
    assert found.first_size == (6, 4)
    images = found.decode((5, 7), gray=False)
    assert isinstance(images, Tensor)
    assert images.shape == (3, 3, 7, 5)
    save(root / "train" / "dog" / "3.png", Image.new("RGB", (6, 4), (90, 90, 90)))
    coloured = ImageFolder.look(root / "train")
    assert not coloured.gray
    images = coloured.decode((6, 4), gray=True)
    assert isinstance(images, Tensor)
    assert images[:, 0, 0, 0].tolist() == [0, 50, 99, 90]


def test_progress_counts_the_images_of_both_parts(root: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    read_folder(root, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 5), (5, 5)]


def test_a_folder_needs_a_test_part_only_where_one_is_used(tmp_path: Path) -> None:
    file = tmp_path / "train" / "cat" / "1.png"
    file.parent.mkdir(parents=True)
    Image.new("L", (6, 4)).save(file)
    assert read_folder(tmp_path, needs_test=False).train.shape == (1, 4, 6)


def test_a_folder_without_train_and_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*train"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match=r"There is no folder \S*nowhere; .* \(--data\) names"):
        read_folder(tmp_path / "nowhere")


def test_what_is_wrong_with_a_folder_is_named(root: Path) -> None:
    file = root / "train" / "dog" / "3.png"
    file.write_bytes(b"nothing")
    assert_refused(root, r"3\.png cannot be decoded")
    save(file, Image.effect_noise((60, 40), 90))
    file.write_bytes(file.read_bytes()[:-400])
    assert_refused(root, r"3\.png cannot be decoded")
    save(file, Image.new("I;16", (6, 4)))
    assert_refused(root, "only 8-bit images")
    file.unlink()
    (root / "test" / "fish").mkdir()
    assert_refused(root, "class fish that train does not have")
    (root / "test" / "fish").rmdir()
    for each in root.glob("test/*/*"):
        each.unlink()
    assert_refused(root, "holds no images")
    for each in root.glob("test/*"):
        each.rmdir()
    assert_refused(root, "has no class folders")


def assert_refused(root: Path, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_folder(root)


def test_a_file_is_not_given_to_another_program_whatever_it_is_called(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow has Ghostscript decode PostScript."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (root / part / name / "0.png").write_bytes(
                b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\nshowpage\n"
            )
    with pytest.raises(DataError, match=r"0\.png cannot be decoded as an image"):
        read_folder(root)
    assert not (tmp_path / "started").exists()


def test_images_that_no_memory_would_hold_are_refused_before_it_is_asked_for(root: Path) -> None:
    folder = ImageFolder.look(root / "train")
    with pytest.raises(DataError, match=r"256 images of the shape \[3, .* of memory; use smaller"):
        folder.decode((10**6, 10**6), gray=False)


# Packed files -----------------------------------------------------------------------------------

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


def test_images_are_normalised_by_their_own_statistics_unless_others_are_given(
    colour: DataSet, tmp_path: Path
) -> None:
    path = pack(colour, tmp_path / "waves.npz", None)
    default = read_packed(path)
    assert (default.train.mean, default.train.std) == channel_statistics(colour.train.inputs)
    assert (default.test.mean, default.test.std) == (default.train.mean, default.train.std)
    other = read_packed(path, "other", ((0.5,) * 3, (0.25,) * 3))
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
        "a test label is 3, but with 3 classes",
    ),
    "negative label": (
        lambda a: {**a, "test_labels": a["test_labels"].astype(np.int64) - 1},
        "there is a label -1",
    ),
    "no images": (
        lambda a: {**a, "test_labels": a["test_labels"][:0]},
        "test_labels must be a row of integers",
    ),
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
        lambda a: with_last_image(a, one_image((32, 32), "RGB", "TIFF")),
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
        read_packed(pack(gray, tmp_path / "x.npz"), None, ((0.5,) * 3, (0.5,) * 3))


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
