"""Unit-group sparse training: a group lasso, weighed by λ, pushes whole units towards zero.

The penalty is λ·Σ √|g|·‖θ_g‖ over the units' groups (Eq. 1 of the paper). A group holds *all*
parameters of a unit: filter, bias, batch-norm scale and shift. Without the batch norm the penalty
would do nothing: a filter followed by batch norm can shrink without changing the output, and no
BN scale would show which units are dispensable.

The gradient λ·√|g|·θ/‖θ_g‖ is added to the gradient of the loss by hand: no second graph, a few
operations a tensor, and one pass over the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptcl.units import Kept, UnitMap, with_fixed

SMALLEST_NORM = 1e-6  # norms are clamped to this, so that a unit at zero has a gradient of zero


class GroupLasso:
    """The penalty over the units of one sub-model.

    The slices of all parameters (filter rows, biases, batch-norm entries) form one long list with
    a group number each, so that a step needs few operations however many layers there are. Slices
    that are never cut belong to a last group without penalty.
    """

    def __init__(self, model: nn.Module, units: UnitMap, kept: Kept) -> None:
        named = dict(model.named_parameters())
        first = next(iter(named.values()))
        # Squares of half-precision numbers would overflow; doubles must not lose digits.
        self._dtype = torch.promote_types(first.dtype, torch.float32)
        count = int(kept.sum())
        # The last entries are those of `FIXED`.
        position = torch.cat([torch.cumsum(kept.long(), 0) - 1, torch.tensor([count])])
        stays = with_fixed(kept)
        self._slices: list[tuple[nn.Parameter, int]] = []
        groups = []
        sizes = torch.zeros(count + 1, dtype=self._dtype)
        for slot in units.slots:
            if not slot.owned or slot.tensor not in named:
                continue
            parameter = named[slot.tensor]
            group = position[slot.ids[stays[slot.ids]]]
            entries = parameter.numel() // parameter.shape[slot.dim]  # of a unit's slice
            sizes.index_add_(0, group, torch.full((len(group),), entries, dtype=self._dtype))
            groups.append(group)
            self._slices.append((parameter, slot.dim))
        sizes[count] = 0
        self._lengths = [len(group) for group in groups]
        self._group = torch.cat(groups or [torch.empty(0, dtype=torch.long)]).to(first.device)
        self._root_size = sizes.sqrt().to(first.device)

    def penalty(self) -> float:
        """Σ √|g|·‖θ_g‖, the penalty before λ."""
        return float((self._root_size * self.norms()).sum())

    @torch.no_grad()
    def add_gradient(self, lasso_lambda: float | Tensor) -> None:
        """Add λ times the penalty's gradient to the parameters' gradients."""
        if not self._slices:
            return
        factor = self._root_size * lasso_lambda / self.norms().clamp_min_(SMALLEST_NORM)
        scales = torch.split(factor[self._group], self._lengths)
        vectors: list[tuple[Tensor, Tensor, Tensor]] = []
        for (parameter, dim), scale in zip(self._slices, scales, strict=True):
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
    def norms(self) -> Tensor:
        """‖θ_g‖ of every kept unit, and at the end one of all slices that are never cut."""
        squares = torch.zeros_like(self._root_size)
        if self._slices:
            lengths = [self._slice_norms(parameter, dim) for parameter, dim in self._slices]
            squares.index_add_(0, self._group, torch.cat(lengths).square_())
        return squares.sqrt_()

    def _slice_norms(self, parameter: Tensor, dim: int) -> Tensor:
        # Reshaping to rows would copy weights that are channels-last.
        others = [d for d in range(parameter.dim()) if d != dim]
        if not others:
            return parameter.to(self._dtype)
        # PyTorch takes no norm of doubles in float32.
        wide = torch.promote_types(parameter.dtype, self._dtype)
        norms: Tensor = torch.linalg.vector_norm(parameter, dim=others, dtype=wide)
        return norms.to(self._dtype)
