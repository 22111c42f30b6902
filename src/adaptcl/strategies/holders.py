"""Who holds what: the weight of those updates that hold each element of the model.

An element of a filter belongs to the unit that owns it and to the one it reads, and an update
holds it if it holds both. Instead of adding to every element for every update, the kept units
themselves are remembered for a while, and then all of them are counted in one product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adaptcl.units import Kept, UnitMap, kept_key, with_fixed

_AT_A_TIME = 64
"""Different sub-models that are remembered before they are counted."""


class Holders:
    """The weights of sub-models by what they hold. Sums of whole numbers are exact."""

    def __init__(self, units: UnitMap, device: torch.device) -> None:
        self._units = units
        self._device = device
        self._wholes = 0.0
        """The weight of whole models."""
        self._waiting: dict[bytes, tuple[Kept, float]] = {}
        self._counted: dict[str, Tensor] = {}

    @property
    def everything_is_held(self) -> bool:
        """Whether somebody holds the whole model."""
        return self._wholes > 0

    def add(self, kept: Kept, weight: float) -> None:
        """Count one sub-model."""
        if bool(kept.all()):
            self._wholes += weight
            return
        key = kept_key(kept)
        _, before = self._waiting.get(key, (kept, 0.0))
        self._waiting[key] = (kept, before + weight)
        if len(self._waiting) == _AT_A_TIME:
            self._count()

    def weights(self) -> Mapping[str, Tensor]:
        """For each tensor the weight of those who hold each element, in a shape that broadcasts.

        A dimension that is never cut has the length 1. A tensor that nobody has cut is left out.
        """
        self._count()
        return {name: counted + self._wholes for name, counted in self._counted.items()}

    def _count(self) -> None:
        if not self._waiting:
            return
        patterns = self._units.patterns
        kept, weights = zip(*self._waiting.values(), strict=True)
        self._waiting.clear()
        flags = torch.stack([with_fixed(each) for each in kept])[:, patterns.ids]
        by_pattern = flags.to(self._device, torch.float64).tensor_split(patterns.ends[:-1], dim=1)
        places = zip(self._units.slots, patterns.of_slot, strict=True)
        flags_of = {(slot.tensor, slot.dim): by_pattern[which] for slot, which in places}
        weight = torch.tensor(weights, dtype=torch.float64).to(self._device)
        for name, slots in self._units.by_tensor.items():
            product = _product(weight, [flags_of[name, slot.dim] for slot in slots])
            dims = {slot.dim for slot in slots}
            whole = self._units.shapes[name]
            shape = [size if dim in dims else 1 for dim, size in enumerate(whole)]
            counted = self._counted.get(name)
            self._counted[name] = product.view(shape) + (0.0 if counted is None else counted)


def _product(weight: Tensor, held: list[Tensor]) -> Tensor:
    """Over all sub-models the sum of weight × flags × flags × …, a dimension for each flags."""
    letters = "abcdefgh"[: len(held)]
    terms = ",".join(["z", *(f"z{letter}" for letter in letters)])
    result: Tensor = torch.einsum(f"{terms}->{letters}", weight, *held)
    return result
