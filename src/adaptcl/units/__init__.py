"""Units: what can be cut of a model, and how to cut it.

`trace` finds the units of any `nn.Module`; `describe` says which of them can be cut, and why the
others cannot. `cut`, `put_back`, `zero` and `submodel` apply kept units to tensors and modules.
`parameters`, `flops`, `retention` and `size_bytes` give the size of a sub-model.
"""

from adaptcl.units.cut import (
    add_at,
    check_kept,
    cut,
    cut_shapes,
    kept_key,
    kept_places,
    put_back,
    recut,
    with_fixed,
    zero,
)
from adaptcl.units.describe import Description, ModuleDescription, describe
from adaptcl.units.reconfigure import submodel
from adaptcl.units.size import flops, parameters, retention, size_bytes
from adaptcl.units.tracing.trace import trace
from adaptcl.units.unit_map import FIXED, Kept, Layer, Slot, State, UnitMap

__all__ = [
    "FIXED",
    "Description",
    "Kept",
    "Layer",
    "ModuleDescription",
    "Slot",
    "State",
    "UnitMap",
    "add_at",
    "check_kept",
    "cut",
    "cut_shapes",
    "describe",
    "flops",
    "kept_key",
    "kept_places",
    "parameters",
    "put_back",
    "recut",
    "retention",
    "size_bytes",
    "submodel",
    "trace",
    "with_fixed",
    "zero",
]
