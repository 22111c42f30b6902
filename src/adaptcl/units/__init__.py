"""What can be cut of a model: its units, and everything done with them.

`trace` finds the units of any `nn.Module`; `cut`, `put_back`, `zero` and `submodel` apply kept
units to tensors and modules; `parameters`, `flops`, `retention` and `size_bytes` say what a
sub-model costs.
"""

from adaptcl.units.cut import check_kept, cut, kept_indexes, put_back, zero
from adaptcl.units.rebuild import submodel
from adaptcl.units.recut import cut_shapes, recut
from adaptcl.units.size import flops, parameters, retention, size_bytes
from adaptcl.units.trace import trace
from adaptcl.units.unit_map import FIXED, Kept, Layer, Slot, State, UnitMap, Work

__all__ = [
    "FIXED",
    "Kept",
    "Layer",
    "Slot",
    "State",
    "UnitMap",
    "Work",
    "check_kept",
    "cut",
    "cut_shapes",
    "flops",
    "kept_indexes",
    "parameters",
    "put_back",
    "recut",
    "retention",
    "size_bytes",
    "submodel",
    "trace",
    "zero",
]
