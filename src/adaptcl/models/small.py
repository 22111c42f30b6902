"""A VGG small enough to train on a laptop: 66 thousand parameters for 28×28 grey images."""

from __future__ import annotations

from torch import Tensor, nn

from adaptcl.errors import SettingError

STAGES = ((16,), (32,), (64, 64))
"""Widths of the convolutions; a max-pool follows each stage."""


class SmallVGG(nn.Module):
    """Four convolutions with batch norm and one linear layer, for images of 8 pixels or more."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 2 ** len(STAGES):
            raise SettingError(
                f"The model 'small' takes images of at least 8 by 8 pixels, not inputs of {shape}."
            )
        channels, height, width = shape
        layers: list[nn.Module] = []
        for stage in STAGES:
            for units in stage:
                layers += [
                    nn.Conv2d(channels, units, kernel_size=3, padding=1, bias=False),
                    nn.BatchNorm2d(units),
                    nn.ReLU(inplace=True),
                ]
                channels = units
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * height * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def small(shape: tuple[int, ...], classes: int) -> SmallVGG:
    return SmallVGG(shape, classes)
