from __future__ import annotations

import pytest
import torch

from adaptcl import models
from adaptcl.errors import SettingError
from benchmarks.layout import refuse_unsafe
from benchmarks.subjects import SHAPES


def test_channels_last_is_never_tried_where_it_corrupts_memory() -> None:
    with pytest.raises(SettingError, match="not known to be safe"):
        refuse_unsafe(models.build("resnet50", (3, 32, 32), 10, seed=1), torch.zeros(2, 3, 32, 32))


def test_the_models_of_the_benchmark_are_safe() -> None:
    shape = SHAPES["small"]
    refuse_unsafe(models.build("small", shape, 10, seed=1), torch.zeros(2, *shape))
