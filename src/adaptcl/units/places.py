"""Places: the indexes of a sub-model's kept units in every tensor of the whole model.

Cutting, putting back and aggregating all need them, in every round and for every worker. So they
are computed once for each set of kept units and each device, and cached: on a GPU nothing is then
copied or waited for between one tensor and the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptcl.errors import UpdateError
from adaptcl.units.unit_map import FIXED, Kept, UnitMap

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Place:
    """The indexes that stay in one dimension of a tensor."""

    index: Tensor
    """In ascending order."""
    start: int | None
    """The first index if there are no gaps; otherwise None."""
    spread: Tensor
    """For every index of the whole dimension its position in `index`; `len(index)` if it is cut."""

    def __len__(self) -> int:
        return len(self.index)


Places = tuple[Place | None, ...]
"""For each dimension of a tensor the indexes that stay, or None if all stay."""


def check_kept(units: UnitMap, kept: Kept) -> None:
    """Raise `UpdateError` unless `kept` describes a sub-model of this model."""
    _check_form(units, kept)
    for layer in units.layers:
        if not kept[layer.units.start : layer.units.stop].any():
            raise UpdateError(f"Layer {layer.name!r} is left without any unit.")


def kept_places(units: UnitMap, kept: Kept, device: torch.device = CPU) -> Mapping[str, Places]:
    """The indexes that stay in each tensor of the model, in the order of its state dict."""
    _check_form(units, kept)
    key = ("places", device, kept_key(kept))
    return units.cache.get(key, lambda: _find_places(units, kept, device))


def cut_shapes(units: UnitMap, kept: Kept) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor of a sub-model."""
    _check_form(units, kept)
    return units.cache.get(("shapes", kept_key(kept)), lambda: _shapes(units, kept))


def kept_key(kept: Kept) -> bytes:
    """Kept units as a dictionary key."""
    return kept.cpu().numpy().tobytes()


def with_fixed(kept: Kept) -> Tensor:
    """Kept flags with a True at the end, so that the index `FIXED` is always kept."""
    assert FIXED == -1
    return torch.cat([kept.cpu(), torch.ones(1, dtype=torch.bool)])


def _check_form(units: UnitMap, kept: Kept) -> None:
    if kept.dtype != torch.bool or kept.shape != (units.count,):
        raise UpdateError(
            f"Kept units must be {units.count} booleans, one for each unit of the model, "
            f"not {kept.dtype} of shape {tuple(kept.shape)}."
        )


def _find_places(units: UnitMap, kept: Kept, device: torch.device) -> Mapping[str, Places]:
    check_kept(units, kept)
    patterns = units.patterns
    stays = with_fixed(kept)[patterns.ids].tensor_split(patterns.ends[:-1])
    chosen = [None if bool(flags.all()) else _place(flags, device) for flags in stays]
    found: dict[str, list[Place | None]] = {
        name: [None] * len(shape) for name, shape in units.shapes.items()
    }
    for slot, pattern in zip(units.slots, patterns.of_slot, strict=True):
        found[slot.tensor][slot.dim] = chosen[pattern]
    return {name: tuple(places) for name, places in found.items()}


def _shapes(units: UnitMap, kept: Kept) -> Mapping[str, tuple[int, ...]]:
    places = kept_places(units, kept)
    return {
        name: tuple(
            size if place is None else len(place)
            for size, place in zip(shape, places[name], strict=True)
        )
        for name, shape in units.shapes.items()
    }


def _place(stays: Tensor, device: torch.device) -> Place:
    index = stays.nonzero().flatten()
    count = len(index)
    # Cut indexes point one past the end, where `add_at` puts zeros.
    spread = torch.where(stays, stays.cumsum(0) - 1, count)
    first = int(index[0]) if count else 0
    is_range = count > 0 and int(index[-1]) - first + 1 == count
    return Place(index.to(device), first if is_range else None, spread.to(device))
