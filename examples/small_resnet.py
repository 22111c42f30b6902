"""A ResNet that trains on two cores: three stages of two bottlenecks, 220 thousand parameters.

It shows how residual nets are cut. A channel of a block's output also belongs to the shortcut and
to all other blocks of its stage, so AdaptCL cuts it from all of them at once.

    adaptcl run --model examples.small_resnet:small_resnet --data cifar10 --data-dir DIR
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.models.resnet50 import EXPANSION, Bottleneck

WIDTH = 16


class SmallResNet(nn.Module):
    """Three stages between a stem that halves the image and the class scores."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        stages, before = [], WIDTH
        for number, width in enumerate((WIDTH, 2 * WIDTH, 4 * WIDTH)):
            out = EXPANSION * width
            stages += [Bottleneck(before, width, 2 if number else 1), Bottleneck(out, width, 1)]
            before = out
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The class scores of a batch of images."""
        x = self.blocks(F.relu(self.bn1(self.conv1(images))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def small_resnet(shape: tuple[int, ...], classes: int) -> SmallResNet:
    """SmallResNet for images of `shape` (channels, height, width)."""
    return SmallResNet(shape[0], classes)
