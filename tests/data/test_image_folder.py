from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch import Tensor

from adaptcl.data.image_folder import ImageFolder, read_folder
from adaptcl.errors import DataError


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


def test_gray_images_stay_gray_and_keep_their_size(root: Path) -> None:
    assert read_folder(root).train.shape == (1, 4, 6)


def test_one_colour_image_makes_all_of_them_rgb(root: Path) -> None:
    save(root / "test" / "dog" / "2.jpg", Image.new("RGB", (6, 4), (255, 0, 0)))
    dataset = read_folder(root)
    assert dataset.train.shape == (3, 4, 6)
    assert torch.equal(dataset.train.inputs[:, 0], dataset.train.inputs[:, 2])


def test_all_images_get_the_size_of_the_first_or_the_one_asked_for(root: Path) -> None:
    save(root / "test" / "dog" / "2.png", Image.new("L", (30, 20)))
    assert read_folder(root).test.shape == (1, 4, 6)
    assert read_folder(root, (5, 7)).test.shape == (1, 7, 5)


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


def test_a_folder_without_train_and_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*train"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match=r"There is no folder \S*nowhere; .* \(--data\) names"):
        read_folder(tmp_path / "nowhere")


def test_a_part_without_classes_or_images_is_refused(root: Path) -> None:
    for file in root.glob("test/*/*"):
        file.unlink()
    with pytest.raises(DataError, match="holds no images"):
        read_folder(root)
    for folder in root.glob("test/*"):
        folder.rmdir()
    with pytest.raises(DataError, match="has no class folders"):
        read_folder(root)


def test_a_class_only_the_test_part_has_is_refused(root: Path) -> None:
    save(root / "test" / "fish" / "1.png", Image.new("L", (6, 4)))
    with pytest.raises(DataError, match="class fish that train does not have"):
        read_folder(root)


def test_a_file_that_is_no_image_is_named(root: Path) -> None:
    (root / "train" / "dog" / "3.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"3\.png cannot be decoded"):
        read_folder(root)


def test_an_image_cut_short_is_named(root: Path) -> None:
    path = root / "train" / "dog" / "3.png"
    save(path, Image.effect_noise((60, 40), 90))
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"3\.png cannot be decoded"):
        read_folder(root)


def test_images_of_more_than_8_bits_are_refused(root: Path) -> None:
    save(root / "train" / "dog" / "3.png", Image.new("I;16", (6, 4)))
    with pytest.raises(DataError, match="only 8-bit images"):
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
