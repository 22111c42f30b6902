from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptcl.data import DataSet, Samples, pack
from adaptcl.data.cifar import CIFAR10, CIFAR100
from adaptcl.errors import DataError


def write_cifar10(data_dir: Path, pixels: NDArray[np.uint8]) -> Path:
    """Five batches of 4 images, 10 test images; image i of all has the label i % 10."""
    folder = data_dir / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    labels = (np.arange(30) % 10).astype(np.uint8)[:, None]
    records = np.concatenate([labels, pixels[:30]], axis=1)
    for batch in range(5):
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(
            records[4 * batch : 4 * batch + 4].tobytes()
        )
    (folder / "test_batch.bin").write_bytes(records[20:].tobytes())
    names = "\n".join(["airplane", "automobile", *"cdefghij"])
    (folder / "batches.meta.txt").write_text(names + "\n\n")
    return folder


def write_cifar100(data_dir: Path, pixels: NDArray[np.uint8]) -> Path:
    """Coarse label 7 everywhere, fine labels 60 to 99."""
    folder = data_dir / "cifar-100-binary"
    folder.mkdir(parents=True)
    fine = np.arange(60, 100, dtype=np.uint8)
    records = np.concatenate([np.full((40, 1), 7, np.uint8), fine[:, None], pixels], axis=1)
    (folder / "train.bin").write_bytes(records[:30].tobytes())
    (folder / "test.bin").write_bytes(records[30:].tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"class {n}" for n in range(100)))
    return folder


def test_cifar10_is_read_from_its_binary_batches_in_order(
    tmp_path: Path, pixels: NDArray[np.uint8]
) -> None:
    write_cifar10(tmp_path, pixels)
    dataset = CIFAR10.load(tmp_path)
    assert dataset.name == "cifar10"
    assert dataset.classes[:2] == ("airplane", "automobile")
    assert len(dataset.classes) == 10
    assert dataset.train.labels.tolist() == [n % 10 for n in range(20)]
    # Red plane first, row by row.
    assert np.array_equal(dataset.train.inputs.numpy(), pixels[:20].reshape(-1, 3, 32, 32))
    assert np.array_equal(dataset.test.inputs.numpy(), pixels[20:30].reshape(-1, 3, 32, 32))


def test_cifar100_uses_the_fine_label(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    write_cifar100(tmp_path, pixels)
    dataset = CIFAR100.load(tmp_path)
    assert dataset.train.labels.tolist() == list(range(60, 90))
    assert dataset.test.labels.tolist() == list(range(90, 100))
    assert dataset.classes[99] == "class 99"
    assert np.array_equal(dataset.test.inputs.numpy(), pixels[30:].reshape(-1, 3, 32, 32))


def test_a_packed_file_is_found_before_the_official_folder(
    tmp_path: Path, pixels: NDArray[np.uint8]
) -> None:
    write_cifar10(tmp_path, pixels)
    images = torch.zeros(10, 3, 32, 32, dtype=torch.uint8)
    samples = Samples(images, torch.arange(10))
    dataset = DataSet("any", samples, samples, tuple("abcdefghij"))
    pack(dataset, tmp_path / "cifar10-jpeg.npz")
    found = CIFAR10.load(tmp_path)
    assert found.name == "cifar10"
    assert found.classes[0] == "a"
    assert found.train.mean == CIFAR10.mean


def test_a_packed_file_of_something_else_is_refused(tmp_path: Path, colour: DataSet) -> None:
    pack(colour, tmp_path / "cifar10.npz")
    with pytest.raises(DataError, match="is not cifar10: it has 3 classes"):
        CIFAR10.load(tmp_path)


def test_a_batch_cut_short_is_refused(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    batch = write_cifar10(tmp_path, pixels) / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged"):
        CIFAR10.load(tmp_path)


def test_a_missing_batch_is_named(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    (write_cifar10(tmp_path, pixels) / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin cannot be read"):
        CIFAR10.load(tmp_path)


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    test_batch = write_cifar10(tmp_path, pixels) / "test_batch.bin"
    test_batch.write_bytes(b"\x0a" + test_batch.read_bytes()[1:])
    with pytest.raises(DataError, match="a test label is 10"):
        CIFAR10.load(tmp_path)


def test_what_is_missing_is_said_together_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="adaptcl data get cifar100 --data-dir DIR"):
        CIFAR100.load(None)
    with pytest.raises(DataError, match=f"adaptcl data get cifar100 --data-dir {tmp_path}"):
        CIFAR100.load(tmp_path)
