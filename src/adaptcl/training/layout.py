"""Which memory layout a model is computed in: channels first, or last where that is safe.

With the channels of a pixel side by side, convolutions need no reordering of what they read and
write, and batch norm and max-pooling are vector operations: a step takes up to a third less time.
But oneDNN, which computes the convolutions, is wrong in channels-last for some of them. A strided
1×1 convolution with few input channels writes past its memory in the backward pass; one with
different strides in height and width, one input channel and one column of output gives wrong
numbers. Pruning can lead any layer to such widths. All that is known concerns strides, so a
model with any strided (or transposed) convolution keeps channels first.

What a model does is found by watching it, because a convolution need not be a module. And it is
tried out: a model may rely on the usual layout, for instance where it flattens with `view`.
The answer depends on the model alone, so that all workers of a run come to the same one.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from adaptcl.training.cpu.convolution import skip_padding
from adaptcl.training.cpu.pooling import pool_by_halves, pool_channels_last

_TOLERANCE = 1e-3
"""How far scores may differ, relative to the largest. A misread layout makes others altogether."""
_GPU_TOLERANCE = 3e-2
"""The same where products may be rounded to ten bits."""


def cpu_layout(model: nn.Module, example: Tensor) -> torch.memory_format:
    """The layout in which a model should train on a CPU; the model stays as it is."""
    if example.dim() != 4 or example.dtype != torch.float32 or not _has_plain_modules(model):
        return torch.contiguous_format
    tried = copy.deepcopy(model)
    with torch.random.fork_rng(devices=()):
        scores = _watched(tried, example)
        if scores is None:
            return torch.contiguous_format
        tried.load_state_dict(model.state_dict())
        understood = _is_understood(tried, example, scores)
    return torch.channels_last if understood else torch.contiguous_format


@torch.no_grad()
def gpu_layout(model: nn.Module, example: Tensor) -> torch.memory_format:
    """The layout in which a GPU should test a model; the model stays as it is.

    Its convolutions are made for channels-last; all that can speak against it is a model that
    relies on the usual layout.
    """
    if example.dim() != 4:
        return torch.contiguous_format
    tried = copy.deepcopy(model).eval()
    expected = tried(example)
    try:
        scores = in_layout(tried, torch.channels_last)(laid_out(example, torch.channels_last))
    except Exception:  # mostly PyTorch's, for a `view` that would need a copy
        return torch.contiguous_format
    understood = _agree(scores, expected, _GPU_TOLERANCE)
    return torch.channels_last if understood else torch.contiguous_format


def in_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """The same model with its weights in that layout."""
    model.to(memory_format=layout)  # type: ignore[call-overload]
    return model


def laid_out(images: Tensor, layout: torch.memory_format) -> Tensor:
    """Inputs of a model in that layout; what is no batch of images comes back as it is."""
    if layout is not torch.channels_last or images.dim() != 4:
        return images
    images = images.contiguous(memory_format=layout)
    _, channels, height, width = images.shape
    if channels > 1:
        return images
    # One channel is first and last at once. Only the strides tell the first convolution which is
    # meant, and all layers after it follow.
    return images.as_strided(images.shape, (height * width, 1, width, 1), images.storage_offset())


def _has_plain_modules(model: nn.Module) -> bool:
    return all(
        _is_plain(module.weight.dim(), module.stride, module.transposed)
        for module in model.modules()
        if isinstance(module, _ConvNd)
    )


@torch.no_grad()
def _watched(model: nn.Module, example: Tensor) -> Tensor | None:
    """The model's scores, if it has convolutions and none that could go wrong in channels-last."""
    try:
        with _Convolutions() as seen:
            scores: Tensor = model.eval()(example)
            model.train()(example)
    except Exception:  # one that trains on whole batches need not on as few samples as these
        return None
    return scores if seen.any and seen.all_plain else None


def _is_understood(model: nn.Module, example: Tensor, expected: Tensor) -> bool:
    """Whether the model gives the scores it should in channels-last, and trains in it at all."""
    images = laid_out(example, torch.channels_last)
    try:
        # Inside, as PyTorch refuses any tensor of five dimensions, such as a stack of filters.
        in_layout(model, torch.channels_last)
        scores = model.eval()(images).detach()
        model.train()(images).sum().backward()
    except Exception:  # mostly PyTorch's, for a `view` that would need a copy
        return False
    return _agree(scores, expected, _TOLERANCE)


def _agree(scores: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((scores - expected).abs().max() <= tolerance * expected.abs().max())


class _Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every convolution, whether a module or a function asks for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any = False
        self.all_plain = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; if it is a convolution, look at it first."""
        if func is torch.ops.aten.convolution.default:
            _, weight, _, stride, _, _, transposed, *_ = args
            self.any = True
            self.all_plain &= _is_plain(weight.dim(), stride, transposed)
        elif "conv" in func.__name__:  # a kind that is not known here
            self.all_plain = False
        return func(*args, **(kwargs or {}))


def _is_plain(dims: int, stride: Any, transposed: bool) -> bool:
    return dims == 4 and not transposed and all(step == 1 for step in stride)


# A model as a CPU computes it fastest, in the memory layout that was found to be safe for it.


def quickened(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """The same model, changed in place; it computes what it did, to the last few bits."""
    if layout is torch.channels_last:
        return skip_padding(pool_channels_last(in_layout(model, layout)))
    return pool_by_halves(model)
