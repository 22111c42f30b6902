from __future__ import annotations

import pytest
from torch import nn

from adaptcl import models
from adaptcl.bench.layout import refuse_unsafe
from adaptcl.errors import SettingError


def test_channels_last_is_never_tried_where_it_corrupts_memory() -> None:
    with pytest.raises(SettingError, match="strided 1×1"):
        refuse_unsafe(models.build("resnet50", (3, 32, 32), 10, seed=1))


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, stride=2), nn.Linear(3, 4)]
)
def test_other_layers_are_safe(layer: nn.Module) -> None:
    refuse_unsafe(nn.Sequential(layer))
