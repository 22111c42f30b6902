"""A trained model as others use it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import adaptcl
from adaptcl.data import Samples
from adaptcl.data.description import Inputs
from adaptcl.errors import AdaptCLWarning, DataError
from adaptcl.runs.result import Delivered

MEAN, STD = (0.3, 0.5), (0.4, 0.2)
IMAGES = torch.randint(0, 256, (5, 2, 6, 6), generator=torch.Generator().manual_seed(1)).byte()
NORMALISED = Samples(IMAGES, torch.zeros(5, dtype=torch.int64), MEAN, STD).batch(torch.arange(5))[0]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def delivered(*, normalised: bool = True, kind: str = "uint8") -> Delivered:
    mean, std = (MEAN, STD) if normalised else (None, None)
    return Delivered(net(), Inputs((2, 6, 6), kind, mean, std, ())).eval()


def test_images_are_prepared_exactly_as_in_training() -> None:
    model = delivered()
    assert torch.equal(model(IMAGES), model.model(NORMALISED))
    assert torch.equal(model(NORMALISED), model.model(NORMALISED))


def test_images_without_normalisation_are_only_scaled() -> None:
    model = delivered(normalised=False)
    torch.testing.assert_close(model(IMAGES), model(IMAGES / 255))


def test_what_it_adds_to_the_model_is_not_among_its_tensors() -> None:
    assert list(delivered().state_dict()) == [f"model.{name}" for name in net().state_dict()]


def test_images_follow_the_model_to_another_type() -> None:
    model = delivered().double()
    assert model(IMAGES).dtype == torch.float64


def test_floats_between_0_and_1_are_warned_of_where_training_normalised() -> None:
    with pytest.warns(AdaptCLWarning) as caught:
        delivered()(IMAGES / 255)
    assert [str(each.message) for each in caught] == [
        "These floats all lie between 0 and 1, as images do before they are normalised, but the "
        "model was trained on normalised ones, from -2.5 to 2.5; give it uint8 images, or subtract "
        "(0.3, 0.5) and divide by (0.4, 0.2)."
    ]


@pytest.mark.parametrize("normalised", [True, False])
def test_floats_between_0_and_255_are_warned_of(normalised: bool) -> None:
    with pytest.warns(AdaptCLWarning, match=r"lie between \d and 25\d, .*; give it uint8 images\."):
        delivered(normalised=normalised)(IMAGES.float())


@given(st.integers(0, 4), st.integers(1, 5))
def test_floats_as_training_had_them_are_not_warned_of(first: int, count: int) -> None:
    delivered()(NORMALISED[first : first + count])
    delivered(normalised=False)(IMAGES[first : first + count] / 255)


def test_nor_are_inputs_that_somebody_made_up_or_models_that_take_no_images() -> None:
    delivered()(torch.zeros(2, 2, 6, 6))
    delivered(normalised=False, kind="float32")(torch.rand(2, 2, 6, 6))


def test_one_look_is_enough() -> None:
    model = delivered()
    with pytest.warns(AdaptCLWarning):
        model(IMAGES / 255)
    model(IMAGES / 255)


@pytest.mark.parametrize("shape", [(2, 6, 6), (4, 3, 6, 6), (4, 6, 6, 2)])
def test_uint8_inputs_that_are_no_such_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"taken for images \[N, 2, H, W\], but these have the sha"):
        delivered()(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("given", [IMAGES, NORMALISED], ids=["images", "floats"])
def test_it_can_be_exported_for_any_number_of_samples(given: Tensor) -> None:
    model = delivered()
    exported = torch.export.export(
        model, (given,), dynamic_shapes={"inputs": ({0: torch.export.Dim("samples", min=1)},)}
    ).module()
    for count in (2, 5):
        torch.testing.assert_close(exported(given[:count]), model(given[:count]))


@pytest.mark.parametrize("given", [IMAGES, NORMALISED], ids=["images", "floats"])
def test_tracing_it_warns_of_nothing_it_does(given: Tensor) -> None:
    model = delivered()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, given)  # type: ignore[no-untyped-call]
    assert {each.category for each in caught} <= {DeprecationWarning}  # of tracing itself
    torch.testing.assert_close(traced(given[:2]), model(given[:2]))


def test_a_run_gives_the_same_model_as_its_folder(tmp_path: Path) -> None:
    data = IMAGES, torch.arange(5) % 3
    result = adaptcl.run(
        net(),
        data,
        data,
        out=tmp_path / "run",
        strategy="fedavg",
        workers=2,
        rounds=1,
        figures="none",
    )
    loaded = adaptcl.load(tmp_path / "run", model=net())
    assert torch.equal(result.delivered(IMAGES), loaded(IMAGES))
    assert torch.equal(result.delivered(IMAGES), result.model(IMAGES.float() * (1 / 255)))
    assert result.delivered.model is result.model
