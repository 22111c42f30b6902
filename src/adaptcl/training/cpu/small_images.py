"""Convolutions of images as small as their kernel, without the products with padding.

Where pooling has left 2×2 pixels, a 3×3 kernel mostly reads the zeros of the padding: 20 of its 36
products are with zeros, and on 4×4 pixels still 44 of 144. oneDNN computes most of them all the
same. Here each tap of the kernel that meets the image is a matrix product with the pixels it
meets. In channels-last a tap is a matrix in memory, so only the images are copied, which are
small. The sums are the same in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ENOUGH = 2**16  # number of weights from which a dozen operations instead of one pay off

_BEYOND = 1  # by how many pixels an image may exceed the kernel for the gradient of the weights


def skip_padding(model: nn.Module) -> nn.Module:
    """Make convolutions of a channels-last model skip the padding, in place."""
    for module in model.modules():
        if type(module) is nn.Conv2d and _can_skip(module):
            # Still the same module: hooks, names and isinstance are unchanged.
            module.__class__ = PaddingSkippingConv2d
    return model


class PaddingSkippingConv2d(nn.Conv2d):
    """A convolution with stride 1 that is fast on small images."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4 or not _is_below(input, self.weight, 1 + _BEYOND):
            return super().forward(input)
        result: Tensor = _ByTaps.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.padding
        )
        return result


class _ByTaps(torch.autograd.Function):
    """Works on [H, W, N, C]: neighbouring pixels of a row are then rows of a matrix."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.padding = padding
        if not _is_below(images, weight, 0):
            return F.conv2d(images, weight, bias, padding=padding)
        pixels = _pixels_first(images)
        shape = [
            size + 2 * pad - taps + 1
            for size, pad, taps in zip(images.shape[2:], padding, weight.shape[2:], strict=True)
        ]
        shape += [len(images), len(weight)]
        scores = pixels.new_zeros(shape) if bias is None else bias.expand(shape).contiguous()
        for each in _meetings(pixels, weight, padding):
            _rows(scores, each.into).addmm_(_rows(pixels, each.out_of), _tap(weight, each).t())
        return _images_first(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        of_images, of_weight, of_bias = ctx.needs_input_grad[:3]

        def usual(*wanted: bool) -> tuple[Tensor | None, ...]:
            found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
                gradients[0], images, weight, [len(weight)],
                [1, 1], ctx.padding, [1, 1], False, [0, 0], 1, wanted,
            )  # fmt: skip
            return found

        if torch.is_grad_enabled():  # for a gradient of the gradient
            return (*usual(of_images, of_weight, of_bias), None)
        pixels, gradient = _pixels_first(images), _pixels_first(gradients[0])
        meetings = list(_meetings(pixels, weight, ctx.padding))
        back = None
        if of_images and _is_below(images, weight, 0):
            back = _images_first(_of_pixels(pixels, gradient, weight, meetings))
        elif of_images:
            back = usual(True, False, False)[0]
        return (
            back,
            _of_weight(pixels, gradient, weight, meetings) if of_weight else None,
            gradient.sum((0, 1, 2)) if of_bias else None,
            None,
        )


class _Stretch(NamedTuple):
    """Neighbouring pixels of a row."""

    row: int
    begin: int
    end: int


class _Meeting(NamedTuple):
    """A tap of the kernel, the pixels it reads, and the pixels of the result it adds to."""

    down: int
    right: int
    out_of: _Stretch
    into: _Stretch
    is_first: bool  # whether it is the first meeting of this tap


def _of_pixels(
    pixels: Tensor, gradient: Tensor, weight: Tensor, meetings: Sequence[_Meeting]
) -> Tensor:
    found = torch.zeros_like(pixels)
    for each in meetings:
        _rows(found, each.out_of).addmm_(_rows(gradient, each.into), _tap(weight, each))
    return found


def _of_weight(
    pixels: Tensor, gradient: Tensor, weight: Tensor, meetings: Sequence[_Meeting]
) -> Tensor:
    found = torch.empty_like(weight)
    if sum(each.is_first for each in meetings) < weight[0, 0].numel():
        found.zero_()  # for the taps that never meet the image
    for each in meetings:
        into, out_of = _rows(gradient, each.into), _rows(pixels, each.out_of)
        _tap(found, each).addmm_(into.t(), out_of, beta=0 if each.is_first else 1)
    return found


def _meetings(pixels: Tensor, weight: Tensor, padding: tuple[int, int]) -> Iterator[_Meeting]:
    rows, columns = (_shifts(pixels.shape[d], weight.shape[2 + d], padding[d]) for d in (0, 1))
    for down, (row_in, row_out, height) in enumerate(rows):
        for right, (begin_in, begin_out, width) in enumerate(columns):
            for y in range(height if width else 0):
                out_of = _Stretch(row_in + y, begin_in, begin_in + width)
                into = _Stretch(row_out + y, begin_out, begin_out + width)
                yield _Meeting(down, right, out_of, into, y == 0)


def _shifts(size: int, taps: int, padding: int) -> list[tuple[int, int, int]]:
    """For each tap along one dimension: where it reads, where it writes, and how many pixels."""
    result = size + 2 * padding - taps + 1
    found = []
    for tap in range(taps):
        begin = max(0, padding - tap)
        count = min(result, size + padding - tap) - begin
        found.append((begin + tap - padding, begin, max(0, count)))
    return found


def _is_below(images: Tensor, weight: Tensor, more: int) -> bool:
    """Whether height and width are less than those of the kernel plus `more` pixels."""
    sizes = zip(images.shape[2:], weight.shape[2:], strict=True)
    return all(size < kernel + more for size, kernel in sizes)


def _rows(pixels: Tensor, stretch: _Stretch) -> Tensor:
    return pixels[stretch.row, stretch.begin : stretch.end].flatten(0, 1)


def _tap(weight: Tensor, meeting: _Meeting) -> Tensor:
    return weight[:, :, meeting.down, meeting.right]


def _pixels_first(images: Tensor) -> Tensor:
    return images.permute(2, 3, 0, 1).contiguous()


def _images_first(pixels: Tensor) -> Tensor:
    return pixels.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)


def _can_skip(module: nn.Conv2d) -> bool:
    return (
        module.stride == (1, 1)
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.numel() >= _ENOUGH
    )
