"""What one forward pass reveals beside the units themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import trace


class TwoCalls(nn.Module):
    """One layer, called with and without steps, or with its units in two dimensions."""

    def __init__(self, swaps: bool) -> None:
        super().__init__()
        self.inner, self.head, self.swaps = Swapping(), nn.Linear(4, 2), swaps

    def forward(self, x: Tensor) -> Tensor:
        steps = self.inner(x, self.swaps)
        steps = steps.transpose(1, 2) if self.swaps else steps
        return self.head(steps.mean(1) + self.inner(x[:, 0], False))  # type: ignore[no-any-return]


class Swapping(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 4)

    def forward(self, x: Tensor, swaps: bool) -> Tensor:  # type: ignore[override]
        out = super().forward(x)
        return out.transpose(1, 2) if swaps else out


@pytest.mark.parametrize(("swaps", "found"), [(False, [("inner", -1)]), (True, [])])
def test_the_units_in_a_layers_output_are_known_if_all_calls_agree(
    swaps: bool, found: list[tuple[str, int]]
) -> None:
    units = trace(TwoCalls(swaps), torch.zeros(2, 5, 3))
    assert [(each.module, each.dim) for each in units.outputs] == found
    assert units.count == 4
