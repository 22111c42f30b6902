"""The two kinds of pruning order: those the server knows, and those only a worker can know.

An order gives every unit an importance; the least important are cut first. The paper's finding
is that an order works in distributed pruning if it is *identical* for all workers and *constant*
over time. An order that looks at neither a worker's data nor a worker's weights can be both, and
the server computes it; one that does look at them is computed by each worker for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.units import Kept, State, UnitMap


@dataclass(frozen=True)
class ServerView:
    """What the server can look at when it decides an order for one worker."""

    units: UnitMap
    state: State
    """The aggregated global model, whole."""
    worker: int
    pruning: int
    """The number of this pruning in the run, counted from 0."""
    seed: int


@dataclass(frozen=True)
class WorkerView:
    """What a worker can look at when it decides its own order."""

    units: UnitMap
    model: nn.Module
    """The worker's sub-model as it is trained so far, physically cut to `kept`."""
    kept: Kept
    samples: Samples
    batch_size: int
    seed: int


class ServerOrder(Protocol):
    """An order that depends on no worker's data and no worker's weights."""

    summary: str
    frozen: bool
    """True: computed once, at the first pruning, and used for all workers ever after."""

    def importance(self, view: ServerView) -> Tensor:
        """Importance of every unit of the original model."""
        ...


class WorkerOrder(Protocol):
    """An order that depends on the worker's own data or weights."""

    summary: str

    def importance(self, view: WorkerView) -> Tensor:
        """Importance of every unit of the original model; units not kept may hold anything."""
        ...
