"""The paper's VGG16 for small images, in the form HRank gave it, and one for a laptop.

VGG16 has thirteen 3×3 convolutions with bias, each followed by batch norm and ReLU, and four
max-pools; then the average over the rest of the image and two linear layers. For 3×32×32 and ten
classes it has 14,991,946 parameters and takes 313 million multiply-adds. The small one has 66
thousand parameters for 28×28 grey images.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from adaptcl.errors import SettingError

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Widths of the convolutions; a max-pool separates the stages."""
SMALL_STAGES = ((16,), (32,), (64, 64))  # widths of the convolutions; a max-pool follows each stage


class VGG16(nn.Module):
    """VGG16 with batch norm; every unit but the class scores can be cut."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, widths in enumerate(VGG16_STAGES):
            if number > 0:
                layers.append(nn.MaxPool2d(2))
            layers += _convolutions(channels, widths, bias=True)
            channels = widths[-1]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(channels, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(inplace=True),
            nn.Linear(512, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


class SmallVGG(nn.Module):
    """Four convolutions with batch norm and one linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for widths in SMALL_STAGES:
            layers += [*_convolutions(channels, widths, bias=False), nn.MaxPool2d(2)]
            channels, height, width = widths[-1], height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * height * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def vgg16(shape: tuple[int, ...], classes: int) -> VGG16:
    """VGG16 for images of `shape` (channels, height, width), at least 16 pixels a side."""
    _refuse_smaller("vgg16", shape, 2 ** (len(VGG16_STAGES) - 1))
    return VGG16(shape[0], classes)


def small(shape: tuple[int, ...], classes: int) -> SmallVGG:
    """The small VGG for images of at least 8 pixels a side."""
    _refuse_smaller("small", shape, 2 ** len(SMALL_STAGES))
    return SmallVGG(shape, classes)


def _convolutions(channels: int, widths: Sequence[int], *, bias: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [
            nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=bias),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        channels = width
    return layers


def _refuse_smaller(name: str, shape: tuple[int, ...], pixels: int) -> None:
    """Refuse images on which the max-pools would leave nothing."""
    if len(shape) != 3 or min(shape[1:]) < pixels:
        raise SettingError(
            f"The model {name!r} takes images of at least {pixels} by {pixels} pixels, not inputs "
            f"of {shape}."
        )
