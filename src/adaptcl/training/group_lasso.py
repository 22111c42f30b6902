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

from adaptcl.units import FIXED, Kept, UnitMap, with_fixed

SMALLEST_NORM = 1e-6
"""Norms are clamped here, so that a unit that has reached zero has a gradient of zero."""


class GroupLasso:
    """The penalty over the units of one sub-model, bound to its parameters.

    The slices of all parameters (filter rows, biases, batch-norm entries) are treated as one long
    list with a group number each, so that a step needs few operations however many layers there
    are. Slices that are never cut belong to a last group that has no penalty.
    """

    def __init__(self, model: nn.Module, units: UnitMap, kept: Kept) -> None:
        named = dict(model.named_parameters())
        first = next(iter(named.values()))
        # Squares of half-precision numbers would overflow, those of doubles lose digits.
        self._dtype = torch.promote_types(first.dtype, torch.float32)
        count = int(kept.sum())
        position = torch.cat([torch.cumsum(kept.long(), 0) - 1, torch.tensor([count])])
        stays = with_fixed(kept)
        self._parts: list[tuple[nn.Parameter, int]] = []
        groups = []
        sizes = torch.zeros(count + 1, dtype=self._dtype)
        for slot in units.slots:
            if not slot.owned or slot.tensor not in named:
                continue
            parameter = named[slot.tensor]
            assert FIXED == -1  # the last entry of `position`, as of `stays`
            group = position[slot.ids[stays[slot.ids]]]
            each = parameter.numel() // parameter.shape[slot.dim]
            sizes.index_add_(0, group, torch.full((len(group),), each, dtype=self._dtype))
            groups.append(group)
            self._parts.append((parameter, slot.dim))
        sizes[count] = 0
        self._lengths = [len(group) for group in groups]
        self._group = torch.cat(groups or [torch.empty(0, dtype=torch.long)]).to(first.device)
        self._root_size = sizes.sqrt().to(first.device)

    @torch.no_grad()
    def norms(self) -> Tensor:
        """‖θ_g‖ of every kept unit."""
        return self._norms()[:-1]

    def penalty(self) -> float:
        """Σ √|g|·‖θ_g‖, the penalty before λ."""
        return float((self._root_size * self._norms()).sum())

    @torch.no_grad()
    def add_gradient(self, coefficient: float | Tensor) -> None:
        """Add λ times the penalty's gradient to the gradients that are there."""
        if not self._parts:
            return
        factor = self._root_size * coefficient / self._norms().clamp_min_(SMALLEST_NORM)
        scales = torch.split(factor[self._group], self._lengths)
        vectors: list[tuple[Tensor, Tensor, Tensor]] = []
        for (parameter, dim), scale in zip(self._parts, scales, strict=True):
            if parameter.grad is None:
                continue
            if parameter.dim() == 1:
                vectors.append((parameter.grad, parameter, scale.to(parameter.dtype)))
            else:
                shape = [-1 if d == dim else 1 for d in range(parameter.dim())]
                parameter.grad.addcmul_(parameter, scale.to(parameter.dtype).view(shape))
        if vectors:
            torch._foreach_addcmul_(*map(list, zip(*vectors, strict=True)))

    @torch.no_grad()
    def _norms(self) -> Tensor:
        squares = torch.zeros_like(self._root_size)
        if self._parts:
            lengths = [self._slice_norms(parameter, dim) for parameter, dim in self._parts]
            squares.index_add_(0, self._group, torch.cat(lengths).square_())
        return squares.sqrt_()

    def _slice_norms(self, parameter: Tensor, dim: int) -> Tensor:
        # Reshaping to rows would copy weights in any other layout than the usual one.
        others = [d for d in range(parameter.dim()) if d != dim]
        if not others:
            return parameter.to(self._dtype)
        # Doubles beside floats: PyTorch takes no norm in fewer digits than there are.
        wide = torch.promote_types(parameter.dtype, self._dtype)
        norms: Tensor = torch.linalg.vector_norm(parameter, dim=others, dtype=wide)
        return norms.to(self._dtype)


def coefficient(strength: float, loss: float, penalty: float) -> float:
    """λ such that the lasso makes up `strength` of the whole loss, as PruneTrain sets it."""
    if strength == 0 or penalty == 0:
        return 0.0
    return strength * loss / ((1 - strength) * penalty)
