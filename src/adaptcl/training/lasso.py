"""The group lasso of sparse training: pushes whole units towards zero so that they can go.

The penalty is λ·Σ √|g|·‖θ_g‖ over the units' groups (Eq. 1 of the paper). A group holds *all* the
unit owns: filter, bias, batch-norm scale and shift. Leaving out the batch norm would do nothing:
a filter followed by batch norm can shrink without the output changing, so no BN scale would tell
which units are dispensable.

The gradient λ·√|g|·θ/‖θ_g‖ is added to the loss's by hand: no second graph, a few operations a
tensor, and one pass over the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptcl.units import FIXED, Kept, UnitMap

_SMALLEST_NORM = 1e-6
"""Norms are clamped here, so that a unit that has reached zero has a gradient of zero."""


class GroupLasso:
    """The penalty over the units of one sub-model, bound to its parameters."""

    def __init__(self, model: nn.Module, units: UnitMap, kept: Kept) -> None:
        named = dict(model.named_parameters())
        device = next(iter(named.values())).device
        position = torch.cumsum(kept.long(), 0) - 1
        self._count = int(kept.sum())
        self._parts: list[tuple[nn.Parameter, Tensor, Tensor | None]] = []
        sizes = torch.zeros(self._count)
        for slot in units.slots:
            if not slot.owned or slot.tensor not in named:
                continue
            parameter = named[slot.tensor]
            in_unit = slot.ids[slot.ids != FIXED]
            rows = slot.ids[(slot.ids == FIXED) | kept[slot.ids.clamp_min(0)]]
            group = position[in_unit[kept[in_unit]]]
            if not len(group):
                continue
            # Rows that are never cut belong to no group and stay out of the penalty.
            chosen = (rows != FIXED).nonzero().flatten() if bool((rows == FIXED).any()) else None
            sizes.index_add_(0, group, torch.full((len(group),), parameter[0].numel() * 1.0))
            self._parts.append(
                (parameter, group.to(device), None if chosen is None else chosen.to(device))
            )
        self._root_size = sizes.sqrt().to(device)

    @torch.no_grad()
    def norms(self) -> Tensor:
        """‖θ_g‖ of every kept unit."""
        squares = torch.zeros(self._count, device=self._root_size.device)
        for parameter, group, chosen in self._parts:
            rows = parameter if chosen is None else parameter[chosen]
            norm = torch.linalg.vector_norm(rows.flatten(1), dim=1) if rows.dim() > 1 else rows
            squares.index_add_(0, group, norm * norm)
        return squares.sqrt_()

    def penalty(self) -> float:
        """Σ √|g|·‖θ_g‖, the penalty before λ."""
        return float((self._root_size * self.norms()).sum())

    @torch.no_grad()
    def add_gradient(self, coefficient: float) -> None:
        """Add λ times the penalty's gradient to the gradients that are there."""
        factor = self._root_size * coefficient / self.norms().clamp_min_(_SMALLEST_NORM)
        for parameter, group, chosen in self._parts:
            gradient = parameter.grad
            if gradient is None:
                continue
            scale = factor[group].view([-1] + [1] * (parameter.dim() - 1))
            if chosen is None:
                gradient.addcmul_(parameter, scale)
            else:
                gradient.index_add_(0, chosen, parameter[chosen] * scale)


def coefficient(strength: float, loss: float, penalty: float) -> float:
    """λ such that the lasso makes up `strength` of the whole loss, as PruneTrain sets it."""
    if strength == 0 or penalty == 0:
        return 0.0
    return strength * loss / ((1 - strength) * penalty)
