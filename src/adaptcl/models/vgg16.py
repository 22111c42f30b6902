"""The paper's VGG16 for small images, in the form HRank gave it.

Thirteen 3×3 convolutions with bias, each followed by batch norm and ReLU, and four max-pools; then
the average over the rest of the image and two linear layers. For 3×32×32 and ten classes it has
14,991,946 parameters and takes 313 million multiply-adds.
"""

from __future__ import annotations

from torch import Tensor, nn

from adaptcl.errors import SettingError

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Widths of the convolutions; a max-pool separates the stages."""

SMALLEST = 2 ** (len(STAGES) - 1)
"""Pixels a side that the max-pools need."""


class VGG16(nn.Module):
    """VGG16 with batch norm; every unit but the class scores can be cut."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, stage in enumerate(STAGES):
            if number > 0:
                layers.append(nn.MaxPool2d(2))
            for width in stage:
                layers += [
                    nn.Conv2d(channels, width, kernel_size=3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
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


def vgg16(shape: tuple[int, ...], classes: int) -> VGG16:
    """VGG16 for images of `shape` (channels, height, width), at least 16 pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        raise SettingError(
            f"The model 'vgg16' takes images of at least {SMALLEST} by {SMALLEST} pixels, not "
            f"inputs of {shape}."
        )
    return VGG16(shape[0], classes)
