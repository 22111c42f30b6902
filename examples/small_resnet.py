"""A ResNet that trains on two cores: three stages of two bottlenecks, 220 thousand parameters.

Sub-models of residual nets are cut through additions: a channel of a block's output belongs to all
blocks of its stage and to the shortcut, and goes from all of them at once.

    adaptcl run --model examples.small_resnet:small_resnet --data cifar10 --data-dir DIR
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16
EXPANSION = 4


class Block(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Three convolutions added to the shortcut."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """Three stages between a stem that halves the image and the class scores."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        stages, before = [], WIDTH
        for number, width in enumerate((WIDTH, 2 * WIDTH, 4 * WIDTH)):
            out = EXPANSION * width
            stages += [Block(before, width, 2 if number else 1), Block(out, width, 1)]
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
