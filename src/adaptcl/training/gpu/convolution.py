"""Convolutions in bfloat16 with our kernels for filter gradients.

cuDNN takes the kernel that is fastest when it has the GPU to itself. For filter gradients that
means small tiles that read everything many times. While other workers train at the same time,
larger tiles get more done. And no library is made for images of three colours: here all weights
of such a filter go into one product. Everything else is left to cuDNN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from adaptcl.training.gpu.kernels import convolution_kernels as kernels
from adaptcl.training.gpu.shortcuts import Convolution

_COLOURS = 8  # images with fewer channels are photographs; libraries want at least this many
_WEIGHTS = 256  # most weights of a filter over colours: they must fit into one product
_PROGRAMS = 64  # a filter gradient is split until it keeps this many programs busy
_ADDED = 1024  # entries of a filter gradient that one program adds up


def fits(call: Convolution) -> bool:
    """Whether our kernels can do this convolution."""
    x, filters = call.input, call.weight
    if not (
        x.is_cuda
        and x.dim() == 4
        and filters.dtype == torch.bfloat16
        and x.is_contiguous(memory_format=torch.channels_last)
        and filters.is_contiguous(memory_format=torch.channels_last)
        and call.bias is None
        and call.groups == 1
        and _pair(call.dilation) == (1, 1)
        and not isinstance(call.padding, str)
        and len(set(_pair(call.stride))) == 1
        and 0 < x.numel() < 2**31
        and 0 < x.shape[0] * filters.shape[0] * math.prod(_size(call)) < 2**31
    ):
        return False
    if x.shape[1] < _COLOURS:
        return not x.requires_grad and filters[0].numel() <= _WEIGHTS
    return x.dtype == torch.bfloat16 and x.shape[1] % _COLOURS == 0


def convolve(call: Convolution) -> Tensor:
    """The convolution of channels-last images, in bfloat16."""
    operation = _ConvolveColours if call.input.shape[1] < _COLOURS else _Convolve
    y: Tensor = operation.apply(  # type: ignore[no-untyped-call]
        call.input, call.weight, _pair(call.stride), _pair(call.padding)
    )
    return y


class _Convolve(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, filters)
        ctx.stride, ctx.padding = stride, padding
        return torch.conv2d(x, filters, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, filters = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = None
        if ctx.needs_input_grad[0]:
            dx, _, _ = torch.ops.aten.convolution_backward(
                dy, x, filters, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1,
                (True, False, False),
            )  # fmt: skip
        return dx, filter_gradient(x, dy, filters, ctx.stride[0], ctx.padding), None, None


class _ConvolveColours(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, filters)
        ctx.stride, ctx.padding = stride, padding
        return convolve_colours(x, filters, stride[0], padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, filters = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        return None, colours_gradient(x, dy, filters, ctx.stride[0], ctx.padding), None, None


def convolve_colours(x: Tensor, filters: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """The convolution of images with a few colours."""
    images, channels, height, width = x.shape
    outs, _, down, right = filters.shape
    y_height, y_width = _size(Convolution(x, filters, None, stride, padding))
    y = torch.empty(
        (images, outs, y_height, y_width),
        dtype=filters.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    pixels = images * y_height * y_width
    rows, columns = 128, 64
    kernels.convolve_colours[-(-pixels // rows) * -(-outs // columns),](
        x, filters, y, pixels, height, width, y_height, y_width, outs, *padding,
        STRIDE=stride, CHANNELS=channels, TAPS=down * right, ROW=right,
        PIXELS=rows, OUTS=columns, ENTRIES=_power_of_two(down * right * channels), num_warps=4,
    )  # fmt: skip
    return y


def colours_gradient(
    x: Tensor, dy: Tensor, filters: Tensor, stride: int, padding: tuple[int, int]
) -> Tensor:
    """The gradient of the filters of `convolve_colours`."""
    outs, channels, down, right = filters.shape
    pixels = dy.shape[0] * dy.shape[2] * dy.shape[3]
    rows, depth = 64, 128
    programs = -(-outs // rows)
    sums, total, part = _parts(filters, pixels, programs, depth)
    kernels.colours_gradient[programs, -(-pixels // part)](
        x, dy, sums, pixels, part, outs, *padding,
        HEIGHT=x.shape[2], WIDTH=x.shape[3], Y_HEIGHT=dy.shape[2], Y_WIDTH=dy.shape[3],
        STRIDE=stride, CHANNELS=channels, TAPS=down * right, ROW=right,
        OUTS=rows, ENTRIES=_power_of_two(down * right * channels), PIXELS=depth,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return _added(sums, total)


def filter_gradient(
    x: Tensor, dy: Tensor, filters: Tensor, stride: int, padding: tuple[int, int]
) -> Tensor:
    """The gradient of the filters of a convolution of many channels."""
    outs, channels, down, right = filters.shape
    pixels = dy.shape[0] * dy.shape[2] * dy.shape[3]
    rows, columns = _tile(outs), _tile(channels)
    depth = 32 if rows * columns == 128 * 128 else 64
    programs = -(-outs // rows) * down * right * -(-channels // columns)
    sums, total, part = _parts(filters, pixels, programs, depth)
    kernels.filter_gradient[programs, -(-pixels // part)](
        x, dy, sums, pixels, part, channels, outs, *padding,
        HEIGHT=x.shape[2], WIDTH=x.shape[3], Y_HEIGHT=dy.shape[2], Y_WIDTH=dy.shape[3],
        STRIDE=stride, TAPS=down * right, ROW=right, OUTS=rows, INS=columns, PIXELS=depth,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return _added(sums, total)


def _size(call: Convolution) -> tuple[int, int]:
    """Height and width of the result."""
    (stride, _), padding = _pair(call.stride), _pair(call.padding)
    down, right = (
        (size + 2 * edge - filter_) // stride + 1
        for size, edge, filter_ in zip(
            call.input.shape[2:], padding, call.weight.shape[2:], strict=True
        )
    )
    return down, right


def _parts(filters: Tensor, pixels: int, programs: int, depth: int) -> tuple[Tensor, Tensor, int]:
    """Memory for the sums of each part and for their total, and the pixels of a part."""
    wanted = max(1, min(-(-_PROGRAMS // programs), pixels // (4 * depth)))
    part = -(-pixels // (wanted * depth)) * depth
    parts = -(-pixels // part)
    total = torch.empty_like(filters)
    if parts == 1:
        return total, total, part
    return total.new_empty((parts, total.numel()), dtype=torch.float32), total, part


def _added(sums: Tensor, total: Tensor) -> Tensor:
    if sums is not total:
        count = total.numel()
        kernels.add_parts[-(-count // _ADDED),](sums, total, count, len(sums), BLOCK=_ADDED)
    return total


def _tile(size: int) -> int:
    """128, or 64 if that leaves clearly less of the last tile empty."""
    return 128 if -(-size // 128) * 128 <= 1.15 * (-(-size // 64) * 64) else 64


def _power_of_two(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
