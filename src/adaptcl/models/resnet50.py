"""ResNet50 for small images: a 3×3 stem without max-pool, then the usual bottlenecks.

The paper never cuts the stem and the last convolution of a block, because their outputs are added
to the shortcuts. Without `PAPER_FIXED`, tracing couples the shortcut channels of each stage and
cuts them together.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.errors import SettingError

PAPER_FIXED = ("conv1", "layer*.*.conv3")
"""What the paper never cuts. Projection shortcuts are added to these, so they are fixed too."""

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
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
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Four stages of bottlenecks between a narrow stem and the class scores."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, BLOCKS[0], stride=1)
        self.layer2 = _stage(256, 128, BLOCKS[1], stride=2)
        self.layer3 = _stage(512, 256, BLOCKS[2], stride=2)
        self.layer4 = _stage(1024, 512, BLOCKS[3], stride=2)
        self.fc = nn.Linear(2048, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def resnet50(shape: tuple[int, ...], classes: int) -> ResNet50:
    """ResNet50 for images of `shape` (channels, height, width), of any size."""
    if len(shape) != 3:
        raise SettingError(f"The model 'resnet50' takes images, not inputs of {shape}.")
    return ResNet50(shape[0], classes)


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    rest = (Bottleneck(width * EXPANSION, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)
