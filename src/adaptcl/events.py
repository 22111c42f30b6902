"""What happens in a run, told to whoever listens.

The run folder, the progress display, checkpoints and anything a user adds are listeners: plain
functions of one event. Nothing in a run depends on whether anybody listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adaptcl.records import RoundRecord, Summary


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or goes on after `rounds_done` rounds."""

    strategy: str
    model: str
    data: str
    workers: int
    rounds: int
    rounds_done: int = 0


@dataclass(frozen=True)
class UpdateArrived:
    """A worker's update reached the server (`virtual_time_s` on the run's clock)."""

    worker: int
    round: int
    virtual_time_s: float


@dataclass(frozen=True)
class RoundFinished:
    """A round was closed and its record is final."""

    record: RoundRecord


@dataclass(frozen=True)
class WorkerLost:
    """A worker stopped answering; its units stay as they are in the global model."""

    worker: int
    round: int
    reason: str


@dataclass(frozen=True)
class WorkerJoined:
    """A worker came, or came back. In a simulation all are there from the start, and nobody tells;
    across machines each that comes is told of, also before the first round begins."""

    worker: int
    round: int


@dataclass(frozen=True)
class Warned:
    """Something the user would want to know; the run goes on."""

    message: str


@dataclass(frozen=True)
class RunFinished:
    """The run is over and its figures are final."""

    summary: Summary


Event = (
    RunStarted | UpdateArrived | RoundFinished | WorkerLost | WorkerJoined | Warned | RunFinished
)
Listener = Callable[[Event], None]
