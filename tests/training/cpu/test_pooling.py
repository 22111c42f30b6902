"""The faster max-pools give what PyTorch's give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.training.cpu.pooling import (
    ChannelsLastMaxPool2d,
    HalvingMaxPool2d,
    pool_by_halves,
    pool_channels_last,
)

FAST = pool_by_halves(nn.MaxPool2d(2))


@settings(max_examples=50)
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(2, 9)] * 2),
    levels=st.integers(1, 1000),
    seed=st.integers(0, 2**32),
)
def test_values_and_gradients_are_those_of_pytorch(
    shape: tuple[int, int, int, int], levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # With few levels nearly every window has ties.
    images = torch.randint(-levels, levels, shape, generator=generator).float()

    def both(pool: nn.Module) -> tuple[Tensor, Tensor]:
        given_ = images.clone().requires_grad_()
        pooled = pool(given_)
        weights = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed))
        (pooled * weights).sum().backward()
        assert given_.grad is not None
        return pooled.detach(), given_.grad

    assert all(map(torch.equal, both(FAST), both(nn.MaxPool2d(2))))


@pytest.mark.slow
def test_the_gradient_has_a_gradient() -> None:
    images = torch.randn(2, 3, 5, 6, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: FAST(x).pow(3), images)


def test_single_images_and_odd_sizes_work_too() -> None:
    for images in (torch.randn(1, 2, 2), torch.randn(2, 1, 7, 5)):
        assert torch.equal(FAST(images), F.max_pool2d(images, 2))


def test_other_memory_layouts_keep_theirs() -> None:
    images = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    pooled = FAST(images)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pooled, F.max_pool2d(images, 2))


def test_what_is_too_small_is_still_refused() -> None:
    with pytest.raises(RuntimeError):
        FAST(torch.randn(1, 1, 1, 4))


def test_other_pools_stay_as_they_are() -> None:
    for pool in (
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool1d(2),
        nn.AvgPool2d(2),
    ):
        before = type(pool)
        assert type(pool_by_halves(nn.Sequential(pool))[0]) is before  # type: ignore[index]
    assert type(pool_channels_last(nn.MaxPool2d(2, return_indices=True))) is nn.MaxPool2d


def test_a_pool_that_halves_keeps_its_name_and_hooks() -> None:
    seen: list[Tensor] = []
    for pool in (nn.MaxPool2d(2), nn.MaxPool2d((2, 2), (2, 2)), nn.MaxPool2d(2, 2)):
        seen.clear()
        pool.register_forward_hook(lambda module, args, output: seen.append(output))
        pool_by_halves(nn.Sequential(pool))(torch.randn(1, 1, 4, 4))
        assert isinstance(pool, HalvingMaxPool2d)
        assert len(seen) == 1


def test_with_channels_last_a_gradient_with_channels_first_is_turned_round() -> None:
    pool = pool_channels_last(nn.MaxPool2d(3, stride=2, padding=1))
    assert isinstance(pool, ChannelsLastMaxPool2d)
    gradients = []
    for layer in (pool, nn.MaxPool2d(3, stride=2, padding=1)):
        torch.manual_seed(0)
        images = torch.randn(2, 3, 7, 6).contiguous(memory_format=torch.channels_last)
        images.requires_grad_()
        pooled = layer(images)
        assert pooled.is_contiguous(memory_format=torch.channels_last)
        (pooled.flatten(1) * torch.randn(2, pooled[0].numel())).sum().backward()
        assert images.grad is not None
        assert images.grad.is_contiguous(memory_format=torch.channels_last)
        gradients.append(images.grad)
    assert torch.equal(*gradients)


def test_with_channels_last_what_is_pooled_can_be_changed_in_place() -> None:
    behind = nn.ReLU(inplace=True)
    images = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    ours, usual = images.clone().requires_grad_(), images.clone().requires_grad_()
    pool_channels_last(nn.Sequential(nn.Identity(), nn.MaxPool2d(2), behind))(ours).sum().backward()
    nn.Sequential(nn.MaxPool2d(2), behind)(usual).sum().backward()
    assert ours.grad is not None
    assert usual.grad is not None
    assert torch.equal(ours.grad, usual.grad)


def test_with_channels_last_the_gradient_has_a_gradient_too() -> None:
    pool = pool_channels_last(nn.MaxPool2d(2))
    images = torch.randn(2, 3, 5, 6, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: pool(x).pow(3), images)
