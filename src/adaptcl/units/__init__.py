"""What can be cut of a model: its units, and everything done with them.

`trace` finds the units of any `nn.Module`, and `describe` says which of them can be cut and why the
rest cannot; `cut`, `put_back`, `zero` and `submodel` apply kept units to tensors and modules;
`parameters`, `flops`, `retention` and `size_bytes` say what a sub-model costs.
"""

from adaptcl.units.cut import CutOnDemand, add_at, blocks, cut, kept_indexes, put_back, recut, zero
from adaptcl.units.describe import Described, Description, describe
from adaptcl.units.places import (
    Place,
    Places,
    check_kept,
    cut_shapes,
    kept_key,
    kept_places,
    with_fixed,
)
from adaptcl.units.reconfigure import submodel
from adaptcl.units.size import flops, parameters, retention, size_bytes
from adaptcl.units.trace import trace
from adaptcl.units.unit_map import FIXED, Kept, Layer, Slot, State, UnitMap, Work

__all__ = [
    "FIXED",
    "CutOnDemand",
    "Described",
    "Description",
    "Kept",
    "Layer",
    "Place",
    "Places",
    "Slot",
    "State",
    "UnitMap",
    "Work",
    "add_at",
    "blocks",
    "check_kept",
    "cut",
    "cut_shapes",
    "describe",
    "flops",
    "kept_indexes",
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
