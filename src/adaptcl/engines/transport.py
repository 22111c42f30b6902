"""What the loop drives: a transport, and what it says happens.

A transport only knows how tasks travel and what time it is. There are three: the simulation,
the network, and the grid of somebody's Flower app. A forecast is a simulation that trains nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable
from dataclasses import dataclass

from adaptcl.events import PhaseBegan, Waiting, Warned, WorkerSilent
from adaptcl.storage import Remembered, Tree
from adaptcl.training import Arrival, Task, Timing


@dataclass(frozen=True)
class Arrived:
    """A worker's update is there."""

    arrival: Arrival


@dataclass(frozen=True)
class Lost:
    """A worker is gone."""

    worker: int
    reason: str
    keeps_task: bool = False
    """Whether the strategy need not hear of it: the task waits for the worker to come back, or the
    worker was lost before the run was resumed."""


@dataclass(frozen=True)
class Joined:
    """A worker came, or came back."""

    worker: int
    keeps_task: bool = False  # it goes on with the task it had, so the strategy need not know


@dataclass(frozen=True)
class Expired:
    """The deadline has passed."""


Happening = Arrived | Lost | Joined | Expired | PhaseBegan | Warned | Waiting | WorkerSilent


class Transport(Remembered, ABC):
    """How tasks travel, and what time it is. It counts the bytes that cross the wire.

    A task counts when it ends, answered or not. So what is under way when a run ends, or is done
    again after a resume, is in no sum twice, and a task and its answer are in the same round.
    """

    away: Container[int]
    """Workers that the strategy counts as lost."""

    def __init__(self) -> None:
        self._sent, self._received = 0, 0

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds of the run so far."""

    @abstractmethod
    def open(self, resume: Tree | None) -> Iterable[Happening]:
        """Get ready, from a snapshot or from the start; yields what is worth telling."""

    @abstractmethod
    def send(self, task: Task) -> Timing | None:
        """Send a task; gives its timing. An unknown training time is `inf`; None on a real clock.

        After a resume this is a task that was under way, given out again.
        """

    def begin(self) -> None:
        """All tasks of this moment are sent: work that has not begun yet may begin."""

    @abstractmethod
    def next(self, deadline: float) -> Iterable[Happening]:
        """Wait for what happens next, one thing or several; `Expired` once `deadline` has come.

        The loop takes one happening at a time and acts on it before it asks for another.
        """

    @abstractmethod
    def acknowledge(self, worker: int, *, used: bool) -> None:
        """The strategy has taken or dropped the update that arrived from a worker."""

    def count_task(self, size: int) -> None:
        """Count the bytes of a task that has ended."""
        self._sent += size

    def count_answer(self, size: int) -> None:
        """Count the bytes of an answer, whether or not it is used."""
        self._received += size

    def close_round(self) -> tuple[int, int]:
        """A round has closed; gives the bytes sent and received since the one before did."""
        moved = self._sent, self._received
        self._sent, self._received = 0, 0
        return moved

    def close(self) -> None:
        """Let go of threads and connections, whether or not the run has ended well."""
