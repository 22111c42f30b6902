"""SGD with momentum, weight decay and group lasso on all parameters at once, in one kernel.

All parameters are views of one vector, their velocities of another. For training in half precision
a third vector holds the weights rounded to bfloat16, which the forward pass reads. The step that
changes a weight also writes its rounded form, so no casts are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from adaptcl.training.gpu.kernels import descent_kernels as kernels
from adaptcl.training.gpu.slices import lay_out, slices
from adaptcl.training.group_lasso import SMALLEST_NORM
from adaptcl.training.task import Recipe
from adaptcl.units import Kept, UnitMap

_BLOCK, _WARPS = 512, 4
_NONE, _ZERO, _FULL, _HALF = range(4)


class Descent:
    """The parameters of a sub-model and their optimizer."""

    def __init__(
        self, model: nn.Module, units: UnitMap, kept: Kept, recipe: Recipe, *, half: bool
    ) -> None:
        named = dict(model.named_parameters())
        device = next(iter(named.values())).device
        self._recipe = recipe
        self._places, length = lay_out({n: tuple(p.shape) for n, p in named.items()})
        self._weights = torch.zeros(length, device=device)
        self._velocities = torch.zeros(length, device=device)
        self._halves = self._weights.bfloat16() if half else None
        self.leaves: dict[str, Tensor] = {}  # what the forward pass reads, by parameter name
        multiplied = _multiplied(model) if half else set()
        for name, parameter in named.items():
            place = self._places[name]
            place.view(self._weights).copy_(parameter.detach())
            parameter.data = place.view(self._weights)
            read = self._halves if name in multiplied and self._halves is not None else None
            leaf = parameter.data if read is None else place.view(read)
            self.leaves[name] = leaf.detach().requires_grad_(parameter.requires_grad)
        self.round()
        table = slices(self._places, units, kept)
        roots = table.roots if recipe.strength > 0 else torch.zeros_like(table.roots)
        starts = torch.tensor([place.start for place in self._places.values()])
        self._tensors, self._offsets = table.tensors, table.offsets
        self._groups = len(table.roots)
        self._table = tuple(
            column.to(device)
            for column in (
                table.firsts,
                roots,
                starts[table.tensors] + table.offsets,
                table.counts.int(),
                table.inners.int(),
                table.outers.int(),
            )
        )

    def round(self) -> None:
        """Round the weights again after they were set from outside."""
        if self._halves is not None:
            self._halves.copy_(self._weights)

    def rest(self) -> None:
        """Set all velocities to zero."""
        self._velocities.zero_()

    def gradients(self) -> Gradients:
        """An empty table for the places of the gradients."""
        return Gradients(len(self._tensors), self._weights.device)

    def step(self, gradients: Gradients, lasso_lambda: Tensor, rate: Tensor) -> None:
        """Update all parameters that have a gradient. λ and learning rate are read on the GPU."""
        recipe = self._recipe
        kernels.descend[self._groups,](
            self._weights,
            self._weights if self._halves is None else self._halves,
            self._velocities,
            *self._table,
            gradients.addresses,
            gradients.kinds,
            lasso_lambda,
            rate,
            recipe.momentum,
            recipe.weight_decay,
            SMALLEST=SMALLEST_NORM,
            HALVES=self._halves is not None,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )

    def dense(self, name: str, gradient: Tensor) -> Tensor:
        """A gradient in the layout of its parameter."""
        place = self._places[name]
        if gradient.stride() == place.strides or gradient.dim() == 1:
            return gradient.contiguous() if gradient.dim() == 1 else gradient
        laid_out = torch.empty_strided(
            place.shape, place.strides, dtype=gradient.dtype, device=gradient.device
        )
        return laid_out.copy_(gradient)

    def where(self, found: Sequence[Tensor | None], zero: set[str]) -> tuple[Tensor, Tensor]:
        """The address and the kind of each slice's gradient.

        A parameter named in `zero` has no gradient but is trained as if it were zero.
        """
        kinds, addresses, sizes = [], [], []
        for (name, leaf), gradient in zip(self.leaves.items(), found, strict=True):
            if gradient is None:
                kinds.append(_ZERO if name in zero and leaf.requires_grad else _NONE)
            else:
                kinds.append(_HALF if gradient.dtype == torch.bfloat16 else _FULL)
            addresses.append(0 if gradient is None else gradient.data_ptr())
            sizes.append(0 if gradient is None else gradient.element_size())
        of_slice = torch.tensor(addresses)[self._tensors]
        of_slice += torch.tensor(sizes)[self._tensors] * self._offsets
        return of_slice, torch.tensor(kinds, dtype=torch.int32)[self._tensors]


class Gradients:
    """A table on the GPU in which the step's kernel finds the gradients."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.addresses = torch.zeros(count, dtype=torch.long, device=device)
        self.kinds = torch.zeros(count, dtype=torch.int32, device=device)

    def point(self, addresses: Tensor, kinds: Tensor) -> None:
        """Set where the gradients lie."""
        self.addresses.copy_(addresses)
        self.kinds.copy_(kinds)


def _multiplied(model: nn.Module) -> set[str]:
    """Names of the parameters of matrix products, which autocast would round anyway."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
        for name, _ in module.named_parameters(recurse=False)
    }
