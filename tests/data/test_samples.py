"""Samples that give ready batches, from memory or read as they are needed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import adaptcl
from adaptcl.data import DataSet, Samples, as_samples, load
from adaptcl.data.samples import Items, channel_statistics
from adaptcl.errors import DataError

IMAGES = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2, 1, 0])


def test_samples_know_their_number_and_the_shape_of_one_input() -> None:
    samples = Samples(IMAGES, LABELS)
    assert len(samples) == 5
    assert samples.shape == (3, 4, 6)


def test_a_batch_of_images_is_scaled_and_normalised_by_channel() -> None:
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 1.0)
    inputs, labels = Samples(IMAGES, LABELS, mean, std).batch(torch.tensor([4, 1]))
    expected = IMAGES[[4, 1]].double() / 255
    expected = (expected - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, expected.float())
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize("values", [torch.randn(5, 3), torch.randn(5, 3, 2, 2)])
def test_a_batch_of_floats_is_normalised_by_channel(values: torch.Tensor) -> None:
    mean, std = (1.0, 0.0, -4.0), (0.5, 3.0, 1.0)
    inputs, _ = Samples(values.clone(), LABELS, mean, std).batch(torch.tensor([4, 1]))
    by_channel = (3, *(1 for _ in values.shape[2:]))
    shift, scale = torch.tensor(mean).view(by_channel), torch.tensor(std).view(by_channel)
    torch.testing.assert_close(inputs, (values[[4, 1]] - shift) / scale)


def test_a_batch_of_images_without_mean_and_std_lies_between_0_and_1() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    inputs, _ = Samples(images, torch.tensor([0, 1])).batch(torch.arange(2))
    assert inputs.flatten().tolist() == pytest.approx([0.0, 1.0])


def test_a_batch_of_floats_is_handed_out_as_it_is_and_leaves_the_samples_alone() -> None:
    values = torch.randn(5, 7)
    samples = Samples(values.clone(), LABELS)
    inputs, _ = samples.batch(torch.tensor([3, 0]))
    assert torch.equal(inputs, values[[3, 0]])
    inputs.zero_()
    assert torch.equal(samples.inputs, values)


def test_a_batch_of_numbers_is_handed_out_as_it_is() -> None:
    tokens = torch.randint(0, 1000, (5, 7))
    inputs, _ = Samples(tokens, LABELS).batch(torch.tensor([3, 0]))
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs, tokens[[3, 0]])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_taking_samples_and_then_all_of_them_equals_a_batch_of_these(indexes: list[int]) -> None:
    samples = Samples(IMAGES, LABELS, (0.5,) * 3, (0.25,) * 3)
    chosen = torch.tensor(indexes)
    taken = samples.take(chosen)
    assert taken.mean == samples.mean
    for left, right in zip(
        taken.batch(torch.arange(len(taken))), samples.batch(chosen), strict=True
    ):
        assert torch.equal(left, right)


def test_samples_give_the_same_batches_on_any_device() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samples = Samples(IMAGES, LABELS, (0.5,) * 3, (0.25,) * 3)
    moved = samples.to(device)
    assert moved.inputs.device.type == moved.labels.device.type == device.type
    here, _ = samples.batch(torch.arange(5))
    there, _ = moved.batch(torch.arange(5, device=device))
    torch.testing.assert_close(there.cpu(), here)


def test_samples_that_do_not_fit_are_refused() -> None:
    for inputs, labels, sentence in [
        (IMAGES, LABELS[:4], "5 inputs but 4 labels"),
        (IMAGES[:0], LABELS[:0], "no samples"),
        (torch.tensor([[1.0], [float("nan")]]), LABELS[:2], "NaN"),
        (torch.tensor([[1.0], [float("inf")]]), LABELS[:2], "infinite"),
        (IMAGES, LABELS - 1, "label -1"),
        (IMAGES, LABELS * 5_000_000, "label 10,000,000, that of sample 2, and only 3 different"),
        (IMAGES, LABELS * 10**9, "label 2,000,000,000, that of sample 2, and only 3 different"),
        (IMAGES, LABELS.float() / 0, "Targets hold NaN or infinite values, in 5 of 5"),
        ((IMAGES.float(), IMAGES[:4].float()), LABELS, "have 5, 4 samples"),
        ((IMAGES, LABELS), LABELS, "convert them to float"),
        (IMAGES[:, 0], LABELS, r"\[N, C, H, W\]"),
        (IMAGES.bool(), LABELS, "uint8 images, floats, or int64 numbers"),
    ]:
        with pytest.raises(DataError, match=sentence):
            Samples(inputs, labels)


def test_a_normalisation_that_does_not_fit_is_refused() -> None:
    for inputs, mean, std, sentence in [
        (IMAGES, (0.5,) * 3, None, "go together"),
        (IMAGES, (0.5,), (0.5,), "3 means"),
        (IMAGES, (0.5,) * 3, (0.5, 0.0, 0.5), "above 0"),
        (IMAGES.long(), (0.5,) * 3, (0.5,) * 3, "for images, and for floats"),
    ]:
        with pytest.raises(DataError, match=sentence):
            Samples(inputs, LABELS, mean, std)


def test_channel_statistics_are_those_of_the_float_images() -> None:
    images = torch.randint(0, 200, (7, 2, 5, 5), dtype=torch.uint8)
    mean, std = channel_statistics(images)
    values = images.double().div(255).transpose(0, 1).flatten(1)
    assert mean == pytest.approx(values.mean(1).tolist())
    assert std == pytest.approx(values.std(1, correction=0).tolist())


def test_a_constant_channel_can_still_be_normalised() -> None:
    images = torch.full((3, 1, 2, 2), 9, dtype=torch.uint8)
    assert channel_statistics(images)[1] == (1.0,)


def test_a_data_set_refuses_labels_beyond_its_classes() -> None:
    samples = Samples(IMAGES, LABELS)
    with pytest.raises(DataError, match="a training label is 2, but with 2 classes"):
        DataSet("x", samples, samples, ("a", "b"))


def test_a_data_set_refuses_parts_of_different_shapes() -> None:
    with pytest.raises(DataError, match=r"\[3, 4, 6\] but test inputs \[3, 4, 5\]"):
        DataSet("x", Samples(IMAGES, LABELS), Samples(IMAGES[..., :5], LABELS), ("a", "b", "c"))


# Read as they are needed ------------------------------------------------------------------------

ALTERNATING = torch.arange(40) % 2


class Jittered:
    """Samples with noise of all three generators that people draw from."""

    def __len__(self) -> int:
        return len(ALTERNATING)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        return index + noise / 10, int(ALTERNATING[index])


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which hardly anything fits."""
    monkeypatch.setattr("adaptcl.data.samples.memory", lambda: 4 * 100)


def everything(samples: Samples) -> tuple[Any, Any]:
    return samples.batch(torch.arange(len(samples)))


def test_random_samples_are_drawn_anew_for_every_batch_and_alike_for_the_same() -> None:
    samples = as_samples(Jittered())
    assert isinstance(samples.inputs, Items)
    assert torch.equal(samples.labels, ALTERNATING)
    order = torch.tensor([5, 3, 8])
    first, labels = samples.batch(order)
    assert torch.equal(labels, ALTERNATING[order])
    torch.rand(1), random.random(), np.random.rand()  # whatever others draw meanwhile
    assert torch.equal(samples.batch(order)[0], first)
    assert not torch.equal(samples.batch(order.flip(0))[0][1], first[1])  # at the same place
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


@pytest.mark.slow
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
    samples = as_samples((held, ALTERNATING.numpy()))
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
    monkeypatch.setattr("adaptcl.data.images.CHUNK", 2)
    read = load(f"folder:{tmp_path}").train
    assert isinstance(read.inputs, Items)
    assert (read.mean, read.std) == (held.mean, held.std)
    assert torch.equal(everything(read)[0], everything(held)[0])
