from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from adaptcl.data import DataSet, Samples, pack, tiny_imagenet
from adaptcl.data.tiny_imagenet import first_classes, read_official
from adaptcl.errors import DataError

RED, GREEN, GRAY = (200, 0, 0), (0, 200, 0), 90


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Two classes of two training images and three validation images, 64×64."""
    folder = tmp_path / "tiny-imagenet-200"
    for wordnet_id, colour in (("n02", RED), ("n01", GREEN)):
        images = folder / "train" / wordnet_id / "images"
        images.mkdir(parents=True)
        for number in range(2):
            image = Image.new("RGB", (64, 64), colour)
            image.save(images / f"{wordnet_id}_{number}.JPEG", "JPEG", quality=95)
    validation = folder / "val" / "images"
    validation.mkdir(parents=True)
    Image.new("RGB", (64, 64), RED).save(validation / "val_0.JPEG", "JPEG")
    Image.new("L", (64, 64), GRAY).save(validation / "val_1.JPEG", "JPEG")
    Image.new("RGB", (64, 64), GREEN).save(validation / "val_2.JPEG", "JPEG")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t63\t63\nval_1.JPEG\tn02\t1\t1\t9\t9\nval_2.JPEG\tn01\t0\t0\t9\t9\n"
    )
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\n")
    return folder


def test_the_official_folder_is_read_with_classes_in_order_of_their_ids(official: Path) -> None:
    dataset = tiny_imagenet.load_tiny_imagenet(official.parent)
    assert dataset.classes == ("goldfish", "n02")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [1, 1, 0]
    assert dataset.train.shape == (3, 32, 32)
    green, red = dataset.train.inputs[0], dataset.train.inputs[3]
    assert green[1].float().mean() > 190
    assert red[0].float().mean() > 190


def test_gray_images_become_colour_ones(official: Path) -> None:
    gray = read_official(official).test.inputs[1]
    assert torch.equal(gray[0], gray[2])
    assert (gray.int() - GRAY).abs().max() <= 2


def test_images_can_have_another_size(official: Path) -> None:
    assert read_official(official, 16).test.shape == (3, 16, 16)


def test_a_packed_file_is_found_first(official: Path, colour: DataSet) -> None:
    pack(colour, official.parent / tiny_imagenet.PACKED[-1])
    dataset = tiny_imagenet.load_tiny_imagenet(official.parent)
    assert dataset.name == "tiny-imagenet"
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train.mean == tiny_imagenet.MEAN


def test_an_unfinished_copy_is_refused(official: Path) -> None:
    (official / "train" / "n01" / "images" / "n01_1.JPEG").unlink()
    with pytest.raises(DataError, match="classes hold from 1 to 2 images"):
        read_official(official)


def test_a_damaged_image_is_named(official: Path) -> None:
    (official / "val" / "images" / "val_2.JPEG").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"val_2\.JPEG cannot be decoded"):
        read_official(official)


def test_a_validation_image_of_an_unknown_class_is_refused(official: Path) -> None:
    (official / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match="n77"):
        read_official(official)


def test_the_first_classes_keep_their_samples_labels_and_names(colour: DataSet) -> None:
    part = first_classes(colour, 2, "part")
    assert part.name == "part"
    assert part.classes == ("a", "b")
    assert part.train.labels.tolist() == [0, 1] * 4
    assert torch.equal(part.test.inputs, colour.test.inputs[[0, 1, 3, 4]])


def test_tiny_imagenet_100_is_the_first_hundred_classes(tmp_path: Path) -> None:
    samples = Samples(torch.zeros(200, 3, 8, 8, dtype=torch.uint8), torch.arange(200))
    names = tuple(f"class {n}" for n in range(200))
    pack(DataSet("any", samples, samples, names), tmp_path / "tiny-imagenet.npz")
    dataset = tiny_imagenet.load_first_100(tmp_path)
    assert dataset.name == "tiny-imagenet-100"
    assert dataset.train.labels.tolist() == list(range(100))
    assert dataset.classes == names[:100]


def test_fewer_than_a_hundred_classes_are_refused(official: Path) -> None:
    with pytest.raises(DataError, match="needs 100 classes, but there are 2"):
        tiny_imagenet.load_first_100(official.parent)
