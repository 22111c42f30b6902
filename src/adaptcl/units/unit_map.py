"""The last few results of something worth working out only once, safe to share among threads."""

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


class Recent:
    """Remembers the results asked for most recently, and forgets the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` gave for this key, now or before.

        Two threads may both make it; one of the results is then kept.
        """
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                found: Value = self._known[key]
                return found
        made = make()
        with self._lock:
            self._known[key] = made
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._known)


# The units of a model: which slices of which tensors belong together.
#
# A *unit* is an out-channel or a neuron together with everything that exists only because of it:
# its filter, bias and batch-norm entries (which it *owns*) and the columns of later layers that
# *read* it. The whole of pruning needs one fact about a model: for each dimension of each tensor,
# which unit every index belongs to. Cutting is then an `index_select`, putting back an indexed
# assignment, and no graph is needed after tracing. Unit numbers are those of the original model
# for ever, so sub-models of different workers can be compared and merged.

FIXED = -1
"""The unit number of an index that is never cut."""

State = dict[str, Tensor]
"""The tensors of a model or sub-model by name, as in `nn.Module.state_dict()`."""

Kept = Tensor
"""Kept units: a boolean vector over all units of the original model (the paper's I_w)."""


def is_variance(name: str) -> bool:
    """Whether a tensor is a running variance, which all normalisations call the same."""
    return name.rpartition(".")[2] == "running_var"


def is_counter(name: str) -> bool:
    """Whether a tensor counts the batches that a normalisation has seen in training."""
    return name.rpartition(".")[2] == "num_batches_tracked"


@dataclass(frozen=True)
class Slot:
    """One dimension of one tensor, with the unit that each of its indexes belongs to."""

    tensor: str
    dim: int
    ids: Tensor
    """int64, one entry for each index along the dimension; `FIXED` where it is never cut."""
    owned: bool
    """True if the slices are part of the unit; False if they only read its output."""


@dataclass(frozen=True)
class Layer:
    """The units that one module brings into being, numbered consecutively."""

    name: str
    units: range


@dataclass(frozen=True)
class Work:
    """How often each element of a weight is multiplied for one sample."""

    weight: str
    positions: int


@dataclass(frozen=True)
class Patterns:
    """The different vectors of unit numbers among all slots, end to end.

    A filter, its bias, its batch-norm entries and the columns that read it repeat the same
    vector, so what is worked out for each pattern is worked out several times less often.
    """

    ids: Tensor
    ends: Tensor
    """Where each pattern ends in `ids`."""
    of_slot: tuple[int, ...]
    """The pattern of each slot."""


@dataclass(frozen=True)
class UnitMap:
    """All units of one model. Made by `adaptcl.units.trace`, read by everything else."""

    slots: tuple[Slot, ...]
    layers: tuple[Layer, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of every tensor of the original model's state dict, in its order."""
    parameters: frozenset[str]
    """Names of the tensors that are trained; the rest are buffers. A tied tensor counts under the
    first of its names only."""
    bn_scales: frozenset[str]
    """Names of the scales of batch, instance and group norm whose units can be cut."""
    work: tuple[Work, ...]
    integers: frozenset[str] = frozenset()
    """Names of the buffers that count or index and are not floating point."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """For each further name of a tied tensor its first."""
    frozen: frozenset[str] = frozenset()
    """Names of the parameters that are not trained (`requires_grad` is False)."""
    constants: frozenset[str] = frozenset()
    """Names of the buffers with an infinity or NaN in them, such as the mask of causal attention.
    Nothing can be added to them, so they stay as they are and do not travel."""
    item_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of one element of each tensor; 4 where it is not said."""
    alike: frozenset[str] = frozenset()
    """Names of the weights of grouped convolutions that keep all groups and make them narrower."""
    growth: Mapping[str, Tensor] = field(default_factory=dict)
    """By running statistic, at each index, the power with which what it describes grows with all
    that its unit owns; 1 where it is not said."""

    @property
    def count(self) -> int:
        """How many units can be cut at all."""
        return self.layers[-1].units.stop if self.layers else 0

    def everything(self) -> Kept:
        """The kept units of a sub-model that is the whole model."""
        return torch.ones(self.count, dtype=torch.bool)

    @cached_property
    def variances(self) -> frozenset[str]:
        """Names of all running variances, whether or not their units can be cut."""
        return frozenset(name for name in self.shapes if is_variance(name))

    @cached_property
    def counters(self) -> frozenset[str]:
        """Names of the buffers that count batches, the only ones of whole numbers that change."""
        return frozenset(name for name in self.integers if is_counter(name))

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Slot, ...]]:
        """The slots of each tensor that has any, ordered by dimension."""
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            found.setdefault(slot.tensor, []).append(slot)
        return {name: tuple(sorted(slots, key=lambda s: s.dim)) for name, slots in found.items()}

    @cached_property
    def recent(self) -> Recent:
        """What was worked out for the sub-models in use, from the indexes of their units on.

        As many as take part in a round of any size at the same moment, not as there are workers.
        """
        return Recent(256)

    @cached_property
    def patterns(self) -> Patterns:
        """The different `ids` among the slots."""
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
