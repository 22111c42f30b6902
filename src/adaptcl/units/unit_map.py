"""The unit map: which slices of which tensors of a model belong together.

A *unit* is an out-channel or a neuron together with everything that exists only because of it: its
filter, bias and batch-norm entries (which it *owns*) and the columns of later layers that *read*
it. Pruning needs only one fact about a model: for each dimension of each tensor, the unit of every
index. Cutting is then an `index_select`, putting back is an indexed assignment, and no graph is
needed after tracing. Unit numbers are always those of the original model, so sub-models of
different workers can be compared and merged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")

FIXED = -1
"""The unit number of an index that is never cut. As an index it reads the last entry, so tables
with an entry for each unit have one more at the end, for `FIXED` (`with_fixed`)."""

State = dict[str, Tensor]
"""The tensors of a model or sub-model by name, as in `nn.Module.state_dict()`."""

Kept = Tensor
"""Kept units: a boolean vector over all units of the original model (the paper's I_w)."""


def is_variance(name: str) -> bool:
    """Whether a tensor is a running variance; all normalisations use this name."""
    return name.rpartition(".")[2] == "running_var"


def is_counter(name: str) -> bool:
    """Whether a tensor counts the training batches of a normalisation; all use this name."""
    return name.rpartition(".")[2] == "num_batches_tracked"


@dataclass(frozen=True)
class Slot:
    """One dimension of one tensor, with the unit of each of its indexes."""

    tensor: str
    dim: int
    ids: Tensor
    """int64, one entry per index of the dimension; `FIXED` for an index that is never cut."""
    owned: bool
    """True if the slices are part of the unit; False if they only read its output."""


@dataclass(frozen=True)
class Layer:
    """The units that one module creates, numbered consecutively."""

    name: str
    units: range

    @property
    def place_in_block(self) -> str:
        """The name without numbers of blocks: the same for a layer in each of them."""
        return ".".join("*" if part.isdigit() else part for part in self.name.split("."))


@dataclass(frozen=True)
class StoredSize:
    """A number in an attribute of a module that must change with a cut, such as `num_heads`."""

    module: str
    attribute: str
    ids: Tensor
    """One entry for each that the number counts: its unit, or `FIXED`."""


@dataclass(frozen=True)
class Axis:
    """The dimension of units in what a module works on."""

    module: str
    dim: int  # counted from the end
    ids: Tensor
    """The unit of each index, or `FIXED`."""


@dataclass(frozen=True)
class Work:
    """How often each element of a weight is used in the forward pass of one sample."""

    weight: str
    positions: int


@dataclass(frozen=True)
class Patterns:
    """The distinct vectors of unit numbers among all slots, concatenated.

    A filter, its bias, its batch-norm entries and the columns that read it have the same vector, so
    computing something per pattern is several times cheaper than per slot.
    """

    ids: Tensor
    ends: Tensor
    """The end of each pattern in `ids`."""
    of_slot: tuple[int, ...]
    """The number of the pattern of each slot."""


class ResultCache:
    """Keeps the results asked for most recently. Threads can share it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The result for this key; `make` computes it if it is not there.

        Two threads may both compute it; then one of the results is kept.
        """
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                found: Value = self._results[key]
                return found
        made = make()
        with self._lock:
            self._results[key] = made
            if len(self._results) > self._size:
                self._results.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._results)


@dataclass(frozen=True)
class UnitMap:
    """All units of one model, as `adaptcl.units.trace` finds them."""

    slots: tuple[Slot, ...]
    layers: tuple[Layer, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of every tensor of the original model's state dict, in its order."""
    parameters: frozenset[str]
    """Names of the parameters; all other tensors are buffers. A tied tensor counts under its first
    name only."""
    bn_scales: frozenset[str]
    """Names of the scales of batch, instance and group norm whose units can be cut."""
    work: tuple[Work, ...]
    integers: frozenset[str] = frozenset()
    """Names of the buffers that are not floating point."""
    step_counters: frozenset[str] = frozenset()
    """Names of the integer buffers, single numbers, that a pass in training mode raises."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """The first name of a tied tensor, by each of its further names."""
    frozen: frozenset[str] = frozenset()
    """Names of the parameters that are not trained (`requires_grad` is False)."""
    constants: frozenset[str] = frozenset()
    """Names of the buffers that training does not change, among them all that hold infinity or NaN,
    such as the mask of causal attention: these cannot be averaged."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """The type of each tensor; float32 if it is missing."""
    alike: frozenset[str] = frozenset()
    """Names of the weights of grouped convolutions whose groups all lose the same channels; other
    grouped convolutions lose whole groups."""
    scale_powers: Mapping[str, Tensor] = field(default_factory=dict)
    """For each index of a running statistic: if all that the unit owns is scaled by s, its
    activation scales by s to this power (see `scale_powers.py`); 1 if it is missing."""
    sizes: tuple[StoredSize, ...] = ()
    """The attributes that the forward pass reads as sizes, other than those of PyTorch's layers."""
    averages: tuple[Axis, ...] = ()
    """Of the modules that average over units, such as a layer norm: they count those cut as zeros.
    """
    outputs: tuple[Axis, ...] = ()
    """Of the layers whose module gives their units as its output, or as the first of several."""
    heads: frozenset[str] = frozenset()
    """Names of the layers whose units are heads of attention."""

    @property
    def count(self) -> int:
        """The number of units that can be cut."""
        return self.layers[-1].units.stop if self.layers else 0

    def dtype(self, name: str) -> torch.dtype:
        return self.dtypes.get(name, torch.float32)

    def everything(self) -> Kept:
        """The kept units of the whole model."""
        return torch.ones(self.count, dtype=torch.bool)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that are trained; of all, if none is."""
        return self.parameters - self.frozen or self.parameters

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of all tensors that are no parameters: measured or counted, never trained."""
        return frozenset(n for n in self.shapes if self.tied.get(n, n) not in self.parameters)

    @cached_property
    def variances(self) -> frozenset[str]:
        """Names of all running variances, of units that can be cut or not."""
        return frozenset(name for name in self.shapes if is_variance(name))

    @cached_property
    def counters(self) -> frozenset[str]:
        """Names of the buffers that count batches or steps: no other integer buffers change."""
        return self.step_counters | {name for name in self.integers if is_counter(name)}

    @cached_property
    def unchanging(self) -> frozenset[str]:
        """Names of the tensors that stay as they are all through a run: frozen parameters,
        constants, and whole numbers other than counters."""
        return self.frozen | self.constants | (self.integers - self.counters)

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Slot, ...]]:
        """The slots of each tensor that has any, ordered by dimension."""
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            found.setdefault(slot.tensor, []).append(slot)
        return {name: tuple(sorted(slots, key=lambda s: s.dim)) for name, slots in found.items()}

    @cached_property
    def cache(self) -> ResultCache:
        """Indexes, shapes and sizes of the sub-models in use.

        It is large enough for the workers that train at the same time, not for all workers.
        """
        return ResultCache(256)

    @cached_property
    def patterns(self) -> Patterns:
        order: dict[bytes, int] = {}
        of_slot = []
        vectors: list[Tensor] = []
        for slot in self.slots:
            key = slot.ids.numpy().tobytes()
            if key not in order:
                order[key] = len(vectors)
                vectors.append(slot.ids)
            of_slot.append(order[key])
        ends = torch.tensor([len(ids) for ids in vectors], dtype=torch.int64).cumsum(0)
        ids = torch.cat(vectors) if vectors else torch.empty(0, dtype=torch.int64)
        return Patterns(ids, ends, tuple(of_slot))
