"""Whether two machines have the same model, told without sending it."""

from __future__ import annotations

import hashlib
import json

from torch import nn

from adaptcl.units import UnitMap


def fingerprint(model: nn.Module, units: UnitMap) -> str:
    """A short text that differs where modules, tensor shapes or units differ.

    Values do not count: the server sends those. Two models whose `forward` differs but whose
    modules print alike cannot be told apart.
    """
    parts = [
        repr(model),
        [[name, list(shape)] for name, shape in units.shapes.items()],
        [[slot.tensor, slot.dim, slot.ids.tolist(), slot.owned] for slot in units.slots],
        sorted(units.parameters),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
