"""A VGG small enough to train on a laptop: 61 thousand parameters for 28×28 grey images."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((16,), (32,), (64, 64))
"""Widths of the convolutions, a max-pool between one stage and the next."""


class SmallVGG(nn.Module):
    """Four convolutions with batch norm and one linear layer, for images of 4 pixels or more."""

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
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The class scores of a batch of images."""
        scores: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return scores


def small(shape: tuple[int, ...], classes: int) -> SmallVGG:
    """SmallVGG for images of `shape` (channels, height, width)."""
    return SmallVGG(shape[0], classes)
