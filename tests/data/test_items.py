"""Samples that are read as they are needed: random ones, and those that would fill the memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import adaptcl
from adaptcl.data import Samples, as_samples, load
from adaptcl.data.samples import Items
from adaptcl.errors import DataError

LABELS = torch.arange(40) % 2


class Jittered:
    """Samples with noise of all three generators that people draw from."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        return index + noise / 10, int(LABELS[index])


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which hardly anything fits."""
    monkeypatch.setattr("adaptcl.data.samples.memory", lambda: 4 * 100)


def everything(samples: Samples) -> tuple[Any, Any]:
    return samples.batch(torch.arange(len(samples)))


def test_random_samples_are_drawn_anew_for_every_batch_and_alike_for_the_same() -> None:
    samples = as_samples(Jittered())
    assert isinstance(samples.inputs, Items)
    assert torch.equal(samples.labels, LABELS)
    order = torch.tensor([5, 3, 8])
    first, labels = samples.batch(order)
    assert torch.equal(labels, LABELS[order])
    assert torch.equal(samples.batch(order)[0], first)
    assert not torch.equal(samples.batch(order.flip(0))[0].flip(0), first)
    assert torch.allclose(first.mean(1) - order, torch.full((3,), 0.15), atol=0.15)


def test_reading_random_samples_leaves_the_users_generators_alone() -> None:
    samples = as_samples(Jittered())
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    everything(samples)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_samples_that_stay_the_same_are_read_into_memory() -> None:
    assert isinstance(as_samples([(torch.ones(4), 0), (torch.zeros(4), 1)]).inputs, Tensor)


def test_runs_on_random_samples_can_be_repeated_and_resumed(tmp_path: Path) -> None:
    def run(rounds: int, out: Path | None = None, *, resume: bool = False) -> adaptcl.Result:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        given: dict[str, Any] = {"workers": 3, "train_time": 1, "batch_size": 5, "rounds": rounds}
        given |= {"strategy": "fedavg", "out": out, "resume": resume, "figures": "none"}
        return adaptcl.run(net, Jittered(), Jittered(), **given)

    whole = [record.test_loss for record in run(6).rounds]
    run(3, tmp_path / "run")
    resumed = run(6, tmp_path / "run", resume=True)
    assert [record.test_loss for record in resumed.rounds] == whole


def test_a_data_set_that_would_fill_the_memory_is_read_by_batch(little_memory: None) -> None:
    class Numbered:
        def __len__(self) -> int:
            return 600

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((4,), index), index % 3

    samples = as_samples(Numbered())
    assert isinstance(samples.inputs, Items)
    assert samples.take(torch.tensor([7, 500])).batch(torch.tensor([1]))[0].tolist() == [[500] * 4]
    assert samples.example[:, 0].tolist() == [0, 599]  # which an embedding must have rows for
    assert len(samples.in_memory().inputs) == 600


def test_a_fault_deep_in_a_data_set_that_is_read_by_batch_is_found(little_memory: None) -> None:
    class Odd:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((4,), float("nan") if index == 299 else 1.0), 0

    with pytest.raises(DataError, match="From sample 256 on: Inputs hold NaN"):
        as_samples(Odd())


def test_memory_maps_stay_on_disk(tmp_path: Path) -> None:
    values = np.arange(80, dtype=np.float32).reshape(40, 2)
    np.save(tmp_path / "x.npy", values)
    held = np.load(tmp_path / "x.npy", mmap_mode="r")
    samples = as_samples((held, LABELS.numpy()))
    assert isinstance(samples.inputs, Items)
    assert torch.equal(everything(samples)[0], torch.from_numpy(values))
    regression = as_samples((held, values[:, 0]), "floats")
    assert regression.batch(torch.tensor([3, 2]))[1].tolist() == [6.0, 4.0]


def written_npz(path: Path, write: Callable[..., None], images: NDArray[np.uint8]) -> str:
    labels = np.array(["cat", "dog"] * 20)
    write(path, x_train=images, y_train=labels, x_test=images[:4], y_test=labels[:4])
    return str(path)


def test_an_npz_file_that_would_fill_the_memory_is_read_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(256, size=(40, 6, 5, 3), dtype=np.uint8)
    path = written_npz(tmp_path / "x.npz", np.savez, images)
    held = load(path)
    monkeypatch.setattr("adaptcl.data.samples.memory", lambda: 4 * 1000)
    read = load(path)
    assert isinstance(read.train.inputs, Items)
    assert read.classes == held.classes == ("cat", "dog")
    for one, other in zip(everything(read.train), everything(held.train), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(DataError, match=r"x_train .* is compressed; write .* numpy\.savez, not"):
        load(written_npz(tmp_path / "y.npz", np.savez_compressed, images))


def test_folders_of_images_that_would_fill_the_memory_are_read_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(3):
                pixels = dice.integers(256, size=(4, 6), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    held = load(f"folder:{tmp_path}").train
    monkeypatch.setattr("adaptcl.data.samples.memory", lambda: 4 * 100)
    monkeypatch.setattr("adaptcl.data.image_folder.CHUNK", 2)
    read = load(f"folder:{tmp_path}").train
    assert isinstance(read.inputs, Items)
    assert (read.mean, read.std) == (held.mean, held.std)
    assert torch.equal(everything(read)[0], everything(held)[0])
