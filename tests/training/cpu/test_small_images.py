"""Convolutions of small images skip the padding and give what PyTorch's give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.training.cpu.small_images import PaddingSkippingConv2d, skip_padding

LAST = torch.channels_last


def both(
    size: tuple[int, int], kernel: tuple[int, int], padding: tuple[int, int], *, bias: bool
) -> tuple[nn.Conv2d, nn.Conv2d, Tensor]:
    """The same convolution twice, the usual one and ours, and images for it."""
    torch.manual_seed(0)
    usual = nn.Conv2d(5, 4, kernel, padding=padding, bias=bias, dtype=torch.double)
    ours = nn.Conv2d(5, 4, kernel, padding=padding, bias=bias, dtype=torch.double)
    ours.load_state_dict(usual.state_dict())
    ours.to(memory_format=LAST)  # type: ignore[call-overload]
    ours.__class__ = PaddingSkippingConv2d
    images = torch.randn(3, 5, *size, dtype=torch.double).contiguous(memory_format=LAST)
    return usual, ours, images


@settings(max_examples=60)
@given(data=st.data(), bias=st.booleans())
def test_values_and_gradients_are_those_of_pytorch(data: st.DataObject, bias: bool) -> None:
    size = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    # Enough padding that there is a result, and at times more than anyone would take.
    least = [max(0, (k - s + 1) // 2) for k, s in zip(kernel, size, strict=True)]
    padding = data.draw(st.tuples(*[st.integers(each, each + 2) for each in least]))
    usual, ours, images = both(size, kernel, padding, bias=bias)

    def gone_through(layer: nn.Conv2d) -> list[Tensor]:
        given_ = images.clone().requires_grad_()
        result = layer(given_)
        weights = torch.arange(result.numel(), dtype=torch.double).view(result.shape).sin()
        (result * weights).sum().backward()
        return [result, given_.grad, *(parameter.grad for parameter in layer.parameters())]

    for found, expected in zip(gone_through(ours), gone_through(usual), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [(2, 2), (4, 4)])
def test_results_and_gradients_have_their_channels_last(size: tuple[int, int]) -> None:
    _, ours, images = both(size, (3, 3), (1, 1), bias=True)
    given_ = images.requires_grad_()
    result = ours(given_)
    result.sum().backward()
    assert result.is_contiguous(memory_format=LAST)
    assert given_.grad is not None
    assert given_.grad.is_contiguous(memory_format=LAST)
    assert ours.weight.grad is not None
    assert ours.weight.grad.stride() == ours.weight.stride()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2, 1), (4, 3)])
def test_the_gradient_has_a_gradient(size: tuple[int, int]) -> None:
    _, ours, images = both(size, (3, 3), (1, 1), bias=True)
    assert torch.autograd.gradgradcheck(lambda x: ours(x).pow(3), images.requires_grad_())


def test_only_the_gradients_that_are_needed_are_computed() -> None:
    _, ours, images = both((2, 2), (3, 3), (1, 1), bias=True)
    ours.weight.requires_grad_(False)
    ours(images).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias is not None
    assert ours.bias.grad is not None


def test_larger_images_and_single_ones_go_the_usual_way() -> None:
    usual, ours, _ = both((2, 2), (3, 3), (1, 1), bias=True)
    for shape in ((3, 5, 8, 8), (3, 5, 2, 8), (5, 2, 2)):
        images = torch.randn(shape, dtype=torch.double)
        torch.testing.assert_close(ours(images), usual(images))


def test_other_convolutions_stay_as_they_are() -> None:
    for layer in (
        nn.Conv2d(128, 128, 3, stride=2),
        nn.Conv2d(128, 128, 3, dilation=2),
        nn.Conv2d(128, 128, 3, groups=2),
        nn.Conv2d(128, 128, 3, padding="same"),
        nn.Conv2d(128, 128, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3, padding=1),
        nn.Conv1d(128, 128, 9),
    ):
        before = type(layer)
        assert type(skip_padding(nn.Sequential(layer))[0]) is before  # type: ignore[index]


def test_a_convolution_with_many_weights_stays_the_same_module() -> None:
    layer = nn.Conv2d(128, 128, 3, padding=1)
    assert skip_padding(layer) is layer
    assert isinstance(layer, PaddingSkippingConv2d)
