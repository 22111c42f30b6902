"""Small data sets that tests write to disk and read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptcl.data import DataSet, Samples


def smooth_images(count: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    """Images of slow waves, which JPEG keeps almost unchanged."""
    generator = torch.Generator().manual_seed(seed)
    phase = torch.rand(count, channels, 1, 1, generator=generator) * 6.3
    ramp = torch.linspace(0, 3, size)
    waves = torch.sin(phase + ramp.view(1, 1, 1, -1) + ramp.view(1, 1, -1, 1))
    return ((waves + 1) * 127).to(torch.uint8)


@pytest.fixture
def colour() -> DataSet:
    """Twelve training and six test images, RGB 32×32, three classes."""
    train = Samples(smooth_images(12, 3, 32), torch.arange(12) % 3)
    test = Samples(smooth_images(6, 3, 32, seed=1), torch.arange(6) % 3)
    return DataSet("waves", train, test, ("a", "b", "c"))


@pytest.fixture
def gray() -> DataSet:
    """Eight training and four test images, grayscale 9×9, two classes."""
    train = Samples(smooth_images(8, 1, 9), torch.arange(8) % 2)
    test = Samples(smooth_images(4, 1, 9, seed=1), torch.arange(4) % 2)
    return DataSet("gray waves", train, test, ("a", "b"))


@pytest.fixture
def pixels() -> NDArray[np.uint8]:
    """Random pixels as 40 rows of 3,072 bytes."""
    return np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
