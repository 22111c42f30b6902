from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.data.samples import DataSet, Samples, channel_statistics
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
