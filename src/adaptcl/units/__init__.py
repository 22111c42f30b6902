"""Units: what can be cut of a model, and how to cut it.

`trace` finds the units of any `nn.Module`; `describe` says which of them can be cut, and why the
others cannot. `cut`, `put_back`, `zero` and `submodel` apply kept units to tensors and modules.
`parameters`, `flops`, `retention` and `size_bytes` give the size of a sub-model.
"""

from adaptcl.units.cut import (
    CutOnDemand,
    Place,
    Places,
    add_at,
    blank,
    check_kept,
    cut,
    cut_shapes,
    kept_key,
    kept_places,
    put_back,
    recut,
    row_blocks,
    with_fixed,
    zero,
)
from adaptcl.units.describe import Description, ModuleDescription, describe
from adaptcl.units.reconfigure import submodel
from adaptcl.units.size import flops, parameters, retention, size_bytes
from adaptcl.units.tracing.trace import trace
from adaptcl.units.unit_map import (
    FIXED,
    Average,
    Kept,
    Layer,
    Slot,
    State,
    StoredSize,
    UnitMap,
    Work,
)

__all__ = [
    "FIXED",
    "Average",
    "CutOnDemand",
    "Description",
    "Kept",
    "Layer",
    "ModuleDescription",
    "Place",
    "Places",
    "Slot",
    "State",
    "StoredSize",
    "UnitMap",
    "Work",
    "add_at",
    "blank",
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
    "row_blocks",
    "size_bytes",
    "submodel",
    "trace",
    "with_fixed",
    "zero",
]
