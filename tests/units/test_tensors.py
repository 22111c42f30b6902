"""Models that take several tensors are traced, cut and described as those that take one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.errors import TraceError
from adaptcl.units import describe, submodel, trace
from adaptcl.units.tensors import Tensors, call_model


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 8)
        self.right = nn.Linear(2, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.left(left) + self.right(right)))}


LEFT, RIGHT = torch.randn(4, 3), torch.randn(4, 2)


@pytest.mark.parametrize("example", [(LEFT, RIGHT), {"right": RIGHT, "left": LEFT}])
def test_a_model_of_several_inputs_is_traced_and_cut(example: Tensors) -> None:
    model = TwoInputs()
    units = trace(model, example)
    assert units.count == 8
    kept = units.everything()
    kept[3:] = False
    assert call_model(submodel(model, units, kept), example)["logits"].shape == (4, 1)
    assert describe(model, example).parameters == units_of(model)


def test_a_failure_names_the_shapes_of_all_inputs() -> None:
    with pytest.raises(TraceError, match=r"left float32 \[2, 3\], right float32 \[2, 3\]"):
        trace(TwoInputs(), {"left": LEFT, "right": LEFT})


def units_of(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
