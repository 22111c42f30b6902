"""Which operations of a model our kernels may do together, and that it computes the same."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.models import build
from adaptcl.training.gpu.shortcuts import (
    Convolution,
    OperationRecorder,
    Operations,
    Shortcuts,
    Shortened,
)


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    scale: Tensor,
    shift: Tensor,
    momentum: float,
    eps: float,
    *,
    relu: bool,
    bias: Tensor | None,
) -> Tensor:
    """What the GPU's kernels do, in PyTorch's own operations."""
    y = F.batch_norm(x, running_mean, running_var, scale, shift, True, momentum, eps)
    if bias is not None:
        running_mean.data += momentum * bias
    return F.relu(y) if relu else y


def batch_norm_pool(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    scale: Tensor,
    shift: Tensor,
    momentum: float,
    eps: float,
    *,
    relu: bool,
    bias: Tensor | None,
) -> Tensor:
    """The same with a max-pool behind it."""
    statistics = running_mean, running_var
    y = batch_norm(x, *statistics, scale, shift, momentum, eps, relu=relu, bias=bias)
    return F.max_pool2d(y, 2)


def halve(images: Tensor) -> Tensor:
    """As the GPU's kernel does it: neighbouring columns, then neighbouring rows."""
    columns = torch.maximum(images[..., 0::2], images[..., 1::2])
    return torch.maximum(columns[..., 0::2, :], columns[..., 1::2, :])


def convolve(call: Convolution) -> Tensor:
    """As a sum over places in the filter, which rounds differently from PyTorch's."""
    seen = F.unfold(call.input, call.weight.shape[2:], padding=call.padding, stride=call.stride)
    flat = call.weight.flatten(1) @ seen
    down, right = (
        (size + 2 * padding - filter_) // stride + 1
        for size, padding, filter_, stride in zip(
            call.input.shape[2:], call.padding, call.weight.shape[2:], call.stride, strict=True
        )
    )
    return flat.view(*flat.shape[:2], down, right)


def halves(images: Tensor) -> bool:
    return images.shape[2] % 2 == images.shape[3] % 2 == 0


def normalises(x: Tensor) -> bool:
    return x.dim() in (2, 4)


OPERATIONS = Operations(
    batch_norm,
    normalises,
    batch_norm_pool,
    halve,
    halves,
    convolve=convolve,
    convolves=lambda call: call.bias is None and call.groups == 1,
)


def watched(model: nn.Module, inputs: Tensor) -> Shortcuts:
    watch = OperationRecorder(normalises, halves)
    with torch.no_grad(), watch:
        copy.deepcopy(model).train()(inputs)
    return watch.found()


class Skips(nn.Module):
    """A batch norm before an addition, one used twice, and a bias that matters elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.na, self.nb, self.nc = (nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.na(self.a(x)) + x)  # the sum is rectified, not the batch norm
        twice = self.nb(self.b(x))
        raw = self.c(F.relu(twice) + twice)
        both: Tensor = (torch.relu(self.nc(raw)) + raw).mean((2, 3))  # `raw` keeps its bias
        return both


def test_vgg_has_every_batch_norm_with_its_relu_and_without_the_bias_before() -> None:
    found = watched(build("vgg16", (3, 16, 16), 10, 1), torch.randn(4, 3, 16, 16))
    assert found.norms == found.with_relu == frozenset(range(14))
    assert found.with_pool == {1, 3, 6, 9}
    assert found.without_bias == {number: number for number in range(14)}


def test_what_is_used_twice_is_left_alone() -> None:
    found = watched(Skips(), torch.randn(4, 3, 8, 8))
    assert found == Shortcuts(frozenset({0, 1, 2}), frozenset({2}), frozenset(), {0: 0, 1: 1})


class Pools(nn.Module):
    """Pools of what was rectified: alone, pooled again, looked at, used elsewhere, and odd."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(6))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norms[0](x)))  # 0: all in one
        x = x + F.max_pool2d(x, 3, stride=1, padding=1)  # another pool of what is pooled already
        x = F.relu(x) + x  # and another ReLU
        norm = self.norms[5](x)  # 1: who looks at the shape here must see the whole image too
        x = F.interpolate(self.pool(F.relu(norm)), scale_factor=2) / norm.shape[2]
        x = F.relu(self.norms[1](x), inplace=True)
        x = self.pool(x) * x.shape[2]  # 2: and here
        y = torch.relu(self.norms[2](x))
        y = self.pool(y) + y.mean()  # 3: used elsewhere
        y = self.pool(self.norms[3](y))  # 4: nothing in between
        odd = F.pad(y, (0, 1, 0, 1))
        both: Tensor = self.pool(F.relu(self.norms[4](odd))).mean((2, 3))  # 5: an odd size
        return both


def test_a_max_pool_joins_a_batch_norm_only_where_nobody_sees_what_is_in_between() -> None:
    found = watched(Pools(), torch.randn(4, 3, 32, 32))
    assert found.with_relu == {0, 1, 2, 3, 5}
    assert found.with_pool == {0}


class Biases(nn.Module):
    """Biases that a batch norm does not take away: of what scales it, and along another side."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.rows = nn.Linear(3, 3), nn.Linear(8, 8)
        self.norm, self.one = nn.BatchNorm2d(3), nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale(x.mean((0, 2, 3)).unsqueeze(0))[0]
        norm = self.norm
        x = F.batch_norm(x, norm.running_mean, norm.running_var, scale, norm.bias, True)
        both: Tensor = self.one(self.rows(x[:, :1])).mean((2, 3))
        return both


def test_a_bias_is_left_out_only_where_the_batch_norm_takes_it_away() -> None:
    assert watched(Biases(), torch.randn(4, 3, 8, 8)).without_bias == {}


def test_a_counter_that_is_raised_twice_in_a_pass_is_raised_by_two() -> None:
    norm = nn.BatchNorm2d(3).train()
    assert norm.num_batches_tracked is not None
    images = torch.randn(2, 3, 4, 4)
    mode = Shortened(Shortcuts(), OPERATIONS, [norm.num_batches_tracked])
    with mode:
        norm(norm(images))
    mode.finish()
    assert int(norm.num_batches_tracked) == 2


def test_a_model_that_does_otherwise_with_another_batch_is_not_run_this_way() -> None:
    norm = nn.BatchNorm2d(3).train()
    never = replace(OPERATIONS, normalises=lambda x: False)
    with (
        Shortened(Shortcuts(norms=frozenset({0})), never, ()),
        pytest.raises(RuntimeError, match="every batch"),
    ):
        norm(torch.randn(2, 3, 4, 4))


def test_a_batch_norm_that_does_not_train_is_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    watch = OperationRecorder(lambda x: True, halves)
    with torch.no_grad(), watch:
        model.eval()(torch.randn(2, 3, 8, 8))
    assert watch.found() == Shortcuts()


@pytest.mark.parametrize("name", ["skips", "pools", "small"])
def test_with_shortcuts_a_pass_gives_the_same_outputs_gradients_and_statistics(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "small" else (3, 32, 32) if name == "pools" else (3, 16, 16)
    nets = {"skips": Skips, "pools": Pools}
    model = (nets[name]() if name in nets else build(name, shape, 10, 1)).double()
    inputs = torch.randn(4, *shape, dtype=torch.double)
    # The watch looks for float32; what it finds does not depend on the precision.
    shortcuts = watched(copy.deepcopy(model).float(), inputs.float())
    plain, short = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    counters = [b for n, b in short.named_buffers() if n.endswith("num_batches_tracked")]
    plain(inputs).square().sum().backward()
    mode = Shortened(shortcuts, OPERATIONS, counters)
    with mode:
        output = short(inputs)
    mode.finish()
    output.square().sum().backward()
    left_out = {id(bias) for bias in mode.without_gradient}
    assert len(left_out) == len(shortcuts.without_bias)
    for (key, a), b in zip(plain.named_parameters(), short.parameters(), strict=True):
        assert a.grad is not None
        if id(b) in left_out:
            assert b.grad is None
            assert torch.allclose(a.grad, torch.zeros_like(a.grad), atol=1e-9), key
        else:
            assert b.grad is not None
            assert torch.allclose(a.grad, b.grad, rtol=1e-6, atol=1e-8), key
    for (key, one), other in zip(plain.named_buffers(), short.buffers(), strict=True):
        assert torch.allclose(one, other), key


def test_only_the_usual_max_pool_is_done_by_our_operation() -> None:
    seen = []

    def spy(images: Tensor) -> Tensor:
        seen.append(images)
        return halve(images)

    images = torch.randn(2, 3, 8, 8)
    for pool, ours in (
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=(2, 2)), True),
        (nn.MaxPool2d(3), False),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
    ):
        seen.clear()
        with Shortened(Shortcuts(), replace(OPERATIONS, halve=spy, halves=lambda x: True), ()):
            pooled = pool(images)
        assert torch.equal(pooled, pool(images))
        assert bool(seen) is ours
