"""Every kernel against PyTorch's operations; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training.batches import crop_and_flip, draw_moves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 9, 7)])
def test_a_batch_is_what_the_plain_operations_make(
    shape: tuple[int, int, int], moved: bool
) -> None:
    from adaptcl.training.gpu.batch_and_loss import batch, batch_fits

    randomness = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (50, *shape), dtype=torch.uint8, generator=randomness)
    labels = torch.randint(0, 10, (50,), generator=randomness)
    channels = shape[0]
    samples = Samples(inputs, labels, (0.4,) * channels, (0.2,) * channels).to("cuda")
    assert batch_fits(samples, 16)
    indexes = torch.randint(0, 50, (3, 16), generator=randomness)
    moves = [draw_moves(16, randomness) for _ in indexes]
    table = torch.zeros(3, 4 if moved else 1, 20, dtype=torch.long)
    table[:, 0, :16] = indexes
    for row, each in zip(table, moves if moved else (), strict=False):
        row[1:, :16] = each
    for number in range(3):
        counter = torch.tensor([number], device="cuda")
        images, image_labels = batch(samples, table.cuda(), counter, 16, moved=moved)
        expected, expected_labels = samples.batch(indexes[number].cuda())
        if moved:
            expected = crop_and_flip(expected, moves[number])
        assert torch.allclose(images, expected, atol=1e-6)
        assert torch.equal(image_labels, expected_labels)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (64, 100, 4, 4), (7, 3, 5, 5), (64, 512)])
def test_batch_norm_and_its_gradients_are_those_of_pytorch(
    shape: tuple[int, ...], dtype: torch.dtype, relu: bool
) -> None:
    from adaptcl.training.gpu.batch_norm import batch_norm, fits

    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape, device="cuda").mul_(2).add_(3).to(dtype)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    assert fits(x)
    bias, shift, mean = torch.randn(3, channels, device="cuda")
    scale, variance = torch.rand(2, channels, device="cuda") + 0.5
    outer = torch.randn_like(x)

    # PyTorch in double precision, with the bias that the kernels leave out.
    exact = [t.double().requires_grad_() for t in (x, scale, shift)]
    biased = exact[0] + bias.double().view(1, -1, *[1] * (x.dim() - 2))
    stats = mean.double(), variance.double()
    y = F.batch_norm(biased, *stats, exact[1], exact[2], True, 0.1, 1e-5)
    y = F.relu(y) if relu else y
    expected = torch.autograd.grad(y, exact, outer.double())

    leaves = [t.clone().requires_grad_() for t in (x, scale, shift)]
    statistics = mean.clone(), variance.clone()
    got = batch_norm(
        leaves[0], *statistics, leaves[1], leaves[2], 0.1, 1e-5, relu=relu, bias=bias.to(dtype)
    )
    gradients = torch.autograd.grad(got, leaves, outer)
    loose = 2e-2 if dtype == torch.bfloat16 else 1e-4
    for ours, theirs in zip((got, *statistics, *gradients), (y, *stats, *expected), strict=True):
        # A rectified value next to zero may fall on either side: compare in the mean.
        difference = (ours.double() - theirs).norm() / theirs.norm()
        assert difference < loose


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (64, 512, 4, 4), (7, 100, 6, 2), (8, 3, 2, 2)])
def test_with_a_max_pool_behind_it_the_three_are_one(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.batch_norm import batch_norm
    from adaptcl.training.gpu.batch_norm_pool import batch_norm_pool

    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape, device="cuda").mul_(2).add_(3).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    bias, shift, mean = torch.randn(3, channels, device="cuda")
    scale, variance = torch.rand(2, channels, device="cuda") + 0.5
    results = []
    for together in (False, True):
        leaves = [t.clone().requires_grad_() for t in (x, scale, shift)]
        stats = mean.clone(), variance.clone()
        operation = batch_norm_pool if together else batch_norm
        y = operation(
            leaves[0], *stats, leaves[1], leaves[2], 0.1, 1e-5, relu=True, bias=bias.to(dtype)
        )
        y = y if together else F.max_pool2d(y, 2)
        torch.manual_seed(1)
        gradients = torch.autograd.grad(y, leaves, torch.randn_like(y))
        results.append((y, *stats, *gradients))
    for one, three in zip(*results, strict=True):
        # Of two values that are equal once rounded, either may count as the largest.
        assert (one - three).float().norm() <= 1e-2 * three.float().norm()


@pytest.mark.parametrize(
    ("images", "channels", "outs", "size", "filter_", "stride", "padding"),
    [
        (64, 64, 64, 32, 3, 1, 1),
        (64, 128, 256, 8, 3, 1, 1),
        (64, 512, 512, 2, 3, 1, 1),
        (8, 80, 48, 16, 3, 1, 1),
        (64, 208, 400, 4, 3, 1, 1),
        (64, 64, 256, 16, 1, 1, 0),
        (64, 64, 128, 16, 1, 2, 0),
        (64, 64, 96, 15, 3, 2, 1),
        (7, 16, 8, 9, 5, 1, 0),
        (64, 3, 64, 32, 3, 1, 1),
        (8, 3, 48, 32, 3, 1, 1),
        (5, 1, 20, 28, 5, 1, 2),
        (16, 3, 64, 33, 7, 2, 3),
    ],
)
def test_convolution_and_its_gradients_are_those_of_pytorch(
    images: int, channels: int, outs: int, size: int, filter_: int, stride: int, padding: int
) -> None:
    from adaptcl.training.gpu.convolution import convolve, fits
    from adaptcl.training.gpu.shortcuts import Convolution

    torch.manual_seed(0)
    colours = channels < 8
    last = torch.channels_last
    x = torch.randn(images, channels, size, size, device="cuda").contiguous(memory_format=last)
    filters = torch.randn(outs, channels, filter_, filter_, device="cuda") / filter_
    filters = filters.bfloat16().contiguous(memory_format=last)
    x = x if colours else x.bfloat16()

    leaves = [x.clone().requires_grad_(not colours), filters.clone().requires_grad_()]
    call = Convolution(leaves[0], leaves[1], None, stride, padding)
    assert fits(call)
    y = convolve(call)
    assert y.dtype == torch.bfloat16
    outer = torch.randn_like(y)

    exact = [x.bfloat16().double().requires_grad_(), filters.double().requires_grad_()]
    expected = F.conv2d(exact[0], exact[1], stride=stride, padding=padding)
    wanted = torch.autograd.grad(expected, exact, outer.double())
    got = torch.autograd.grad(y, leaves[colours:], outer)
    for ours, theirs in zip((y, *got), (expected, *wanted[colours:]), strict=True):
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs).norm() / theirs.norm() < 1e-2


def test_a_filter_gradient_has_the_same_bits_every_time() -> None:
    from adaptcl.training.gpu.convolution import filter_gradient

    torch.manual_seed(0)
    x, dy = torch.randn(2, 64, 64, 32, 32, device="cuda", dtype=torch.bfloat16)
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    filters = torch.zeros(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
    filters = filters.contiguous(memory_format=torch.channels_last)
    first, second = (filter_gradient(x, dy, filters, 1, (1, 1)) for _ in range(2))
    assert torch.equal(first, second)


SEED = 2**62 + 12345


def dice(seed: int = SEED, passes: int = 0) -> Tensor:
    return torch.tensor([seed, passes], device="cuda")


def kept(x: Tensor, p: float, state: Tensor, number: int = 0) -> Tensor:
    from adaptcl.training.gpu.activations import drop

    return drop(x, p, 1 / (1 - p), state, number)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_about_so_many_are_dropped_and_the_others_made_up_for(p: float, dtype: torch.dtype) -> None:
    from adaptcl.training.gpu.activations import drop

    x = torch.randn(10, 64, 14, 14, device="cuda", dtype=dtype)
    y, mask = drop(x, p, 1 / (1 - p), dice(), 0)
    assert mask.dtype == torch.bool
    assert float(mask.float().mean()) == pytest.approx(1 - p, abs=0.01)
    assert torch.equal(y, torch.where(mask, (x.float() / (1 - p)).to(dtype), 0))


def test_seed_pass_and_number_all_matter_and_nothing_else_does() -> None:
    x = torch.randn(1000, 100, device="cuda")
    first = kept(x, 0.5, dice())
    assert torch.equal(kept(x * 2, 0.5, dice()), first)
    others = [
        kept(x, 0.5, dice(SEED + 1)),
        kept(x, 0.5, dice(SEED ^ 2**40)),
        kept(x, 0.5, dice(passes=1)),
        kept(x, 0.5, dice(), number=1),
    ]
    for other in others:
        assert float((first == other).float().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("shape", [(10, 64, 14, 14), (3, 5, 7, 2), (4, 1, 6, 6), (4, 6, 1, 1)])
def test_the_layout_makes_no_difference(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device="cuda")
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(kept(x, 0.5, dice()), kept(last, 0.5, dice()))
    apart = torch.randn(shape[1:] + shape[:1], device="cuda").permute(3, 0, 1, 2)
    assert torch.equal(kept(x, 0.5, dice()), kept(apart, 0.5, dice()))


def test_neighbours_are_drawn_apart() -> None:
    drawn = kept(torch.ones(10**6, device="cuda"), 0.5, dice()).float() - 0.5
    for distance in (1, 2, 31, 32, 512):
        together = (drawn[:-distance] * drawn[distance:]).mean()
        assert abs(float(together)) < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "classes"), [(64, 10), (8, 10), (64, 200), (7, 3), (1, 1)])
def test_loss_and_gradient_are_those_of_pytorch(
    rows: int, classes: int, dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.batch_and_loss import loss_fits, loss_gradient

    torch.manual_seed(0)
    scores = (5 * torch.randn(rows, classes, device="cuda")).to(dtype)
    labels = torch.randint(0, classes, (rows,), device="cuda")
    losses, counter = torch.zeros(5, device="cuda"), torch.tensor([3], device="cuda")
    assert loss_fits(scores)
    gradient = loss_gradient(scores, labels, losses, counter)

    exact = scores.double().requires_grad_()
    loss = F.cross_entropy(exact, labels)
    (expected,) = torch.autograd.grad(loss, exact)
    assert losses.tolist() == pytest.approx([0, 0, 0, float(loss), 0], rel=1e-5, abs=1e-6)
    loose = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert float((gradient.double() - expected).norm()) <= loose * float(expected.norm()) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (5, 33, 2, 6)])
def test_values_and_gradients_are_those_of_pytorch_to_the_last_bit(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from adaptcl.training.gpu.activations import halve, halves

    torch.manual_seed(0)
    images = torch.randint(0, 4, shape, device="cuda").to(dtype)  # with ties
    images = images.contiguous(memory_format=torch.channels_last)
    assert halves(images)
    theirs, ours = images.clone().requires_grad_(), images.clone().requires_grad_()
    expected, pooled = F.max_pool2d(theirs, 2), halve(ours)
    assert torch.equal(pooled, expected)
    outer = torch.randn_like(expected)
    (expected_gradient,) = torch.autograd.grad(expected, theirs, outer)
    (gradient,) = torch.autograd.grad(pooled, ours, outer)
    assert torch.equal(gradient, expected_gradient)
