"""The memory layout of a model: channels last where that is safe, otherwise channels first.

With channels last, convolutions need not reorder what they read and write, and batch norm and
max-pooling are vector operations. A step takes up to a third less time. But oneDNN, which computes
the convolutions on a CPU, has bugs in channels-last. A strided 1×1 convolution with few input
channels writes past its memory in the backward pass. One with different strides in height and
width, one input channel and one output column gives wrong numbers. Pruning can lead any layer to
such widths. All known bugs need strides, so a model with a strided or transposed convolution
keeps channels first.

A convolution need not be a module, so the forward pass is watched. And the layout is tried out:
a model may rely on channels first, for instance where it flattens with `view`. The result depends
on the model alone, so all workers of a run choose the same layout.
"""

from __future__ import annotations

import copy
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from adaptcl.training.cpu.pooling import pool_by_halves, pool_channels_last
from adaptcl.training.cpu.small_images import skip_padding
from adaptcl.units.tensors import Tensors

_TOLERANCE = 1e-3
"""How far scores may differ, relative to the largest. A misread layout gives quite other scores."""
_GPU_TOLERANCE = 3e-2  # the same on a GPU, where products may be rounded to ten bits


def cpu_layout(model: nn.Module, example: Tensors) -> torch.memory_format:
    """The layout in which a model should train on a CPU; does not change the model."""
    if not _are_images(example) or example.dtype != torch.float32 or not _has_safe_modules(model):
        return torch.contiguous_format
    tried = copy.deepcopy(model)
    with torch.random.fork_rng(devices=()):
        scores = _scores_if_safe(tried, example)
        if scores is None:
            return torch.contiguous_format
        tried.load_state_dict(model.state_dict())
        works = _works_channels_last(tried, example, scores)
    return torch.channels_last if works else torch.contiguous_format


@torch.no_grad()
def gpu_layout(model: nn.Module, example: Tensors) -> torch.memory_format:
    """The layout in which a GPU should test a model; does not change the model.

    GPUs prefer channels-last, unless the model relies on channels first.
    """
    if not _are_images(example):
        return torch.contiguous_format
    tried = copy.deepcopy(model).eval()
    expected = tried(example)
    if not isinstance(expected, Tensor):
        return torch.contiguous_format
    try:
        scores = in_layout(tried, torch.channels_last)(laid_out(example, torch.channels_last))
    except Exception:  # usually from a `view` that would need a copy
        return torch.contiguous_format
    works = _agree(scores, expected, _GPU_TOLERANCE)
    return torch.channels_last if works else torch.contiguous_format


def _are_images(inputs: Tensors) -> TypeGuard[Tensor]:
    return isinstance(inputs, Tensor) and inputs.dim() == 4


def in_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Bring a model's weights into a layout, in place."""
    model.to(memory_format=layout)  # type: ignore[call-overload]
    return model


def laid_out(images: Any, layout: torch.memory_format) -> Any:
    """A batch of images in that layout; any other input is returned unchanged."""
    if layout is not torch.channels_last or not _are_images(images):
        return images
    images = images.contiguous(memory_format=layout)
    _, channels, height, width = images.shape
    if channels > 1:
        return images
    # One channel is first and last at once. Only the strides tell the first convolution which one
    # is meant, and all later layers follow it.
    return images.as_strided(images.shape, (height * width, 1, width, 1), images.storage_offset())


def speed_up_on_cpu(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Make a model faster on a CPU, in place; its results change in the last few bits only."""
    if layout is torch.channels_last:
        return skip_padding(pool_channels_last(in_layout(model, layout)))
    return pool_by_halves(model)


def _has_safe_modules(model: nn.Module) -> bool:
    return all(
        _is_safe(module.weight.dim(), module.stride, module.transposed)
        for module in model.modules()
        if isinstance(module, _ConvNd)
    )


@torch.no_grad()
def _scores_if_safe(model: nn.Module, example: Tensor) -> Tensor | None:
    """The model's scores; None if it has no convolution or one that is unsafe."""
    try:
        with _Convolutions() as seen:
            scores: Tensor = model.eval()(example)
            model.train()(example)
    except Exception:  # a model may need more samples than the example has
        return None
    is_plain = isinstance(scores, Tensor)
    return scores if is_plain and seen.any and seen.all_safe else None


def _works_channels_last(model: nn.Module, example: Tensor, expected: Tensor) -> bool:
    """Whether the model gives the expected scores in channels-last, and trains in it."""
    images = laid_out(example, torch.channels_last)
    try:
        # May fail: PyTorch refuses tensors of five dimensions, such as a stack of filters.
        in_layout(model, torch.channels_last)
        scores = model.eval()(images).detach()
        model.train()(images).sum().backward()
    except Exception:  # usually from a `view` that would need a copy
        return False
    return _agree(scores, expected, _TOLERANCE)


def _agree(scores: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((scores - expected).abs().max() <= tolerance * expected.abs().max())


class _Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every convolution, whether a module or a function calls it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any = False
        self.all_safe = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.convolution.default:
            _, weight, _, stride, _, _, transposed, *_ = args
            self.any = True
            self.all_safe &= _is_safe(weight.dim(), stride, transposed)
        elif "conv" in func.__name__:  # an unknown kind
            self.all_safe = False
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch asks. Yes would import its compiler, which takes seconds, for nothing."""
        return False


def _is_safe(dims: int, stride: Any, transposed: bool) -> bool:
    return dims == 4 and not transposed and all(step == 1 for step in stride)
