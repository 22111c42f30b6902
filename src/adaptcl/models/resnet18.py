"""ResNet18 for small images: a 3×3 stem without max-pool, then blocks of two convolutions.

It needs 43 % of ResNet50's operations. Tracing couples the channels of each stage, because the
shortcuts add them, and cuts them together.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.errors import SettingError

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks between a narrow stem and the class scores."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], stride=1)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], stride=2)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], stride=2)
        self.layer4 = _stage(WIDTHS[2], WIDTHS[3], stride=2)
        self.fc = nn.Linear(WIDTHS[3], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def resnet18(shape: tuple[int, ...], classes: int) -> ResNet18:
    """ResNet18 for images of `shape` (channels, height, width), of any size."""
    if len(shape) != 3:
        raise SettingError(f"The model 'resnet18' takes images, not inputs of {shape}.")
    return ResNet18(shape[0], classes)


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(channels, width, stride), BasicBlock(width, width, stride=1))
