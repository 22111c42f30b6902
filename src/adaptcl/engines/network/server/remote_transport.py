"""What a transport to other machines keeps, over AdaptCL's own network or somebody's Flower grid.

The two carry messages in ways of their own. What a task's message holds, when an answer counts and
what the server remembers of each worker is the same for both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from adaptcl.codecs.codec import Codecs
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.gate import read_answer
from adaptcl.engines.network.messages import task_frame
from adaptcl.engines.network.server.patience import Reliability
from adaptcl.engines.transport import Happening, Lost, Transport
from adaptcl.errors import UpdateError
from adaptcl.quantities import short_duration
from adaptcl.training import Task, Update
from adaptcl.training.wire import FrozenTensorHolders, LackingError, encode_model
from adaptcl.units import UnitMap


@dataclass(frozen=True)
class OpenTask:
    """A task that a worker has been sent and has not answered."""

    task: Task
    size: int  # in bytes
    is_complete: bool  # whether it brings all that the worker needs, frozen tensors too
    sent: float  # when, by the transport's clock


Open = TypeVar("Open", bound=OpenTask)


class RemoteTransport(Transport, Generic[Open]):
    """The part of a transport that does not depend on how messages travel."""

    def __init__(
        self,
        workers: int,
        units: UnitMap,
        codecs: Codecs,
        clock: Callable[[], float],
        patience: float,
        metrics: Collection[str] = (),
    ) -> None:
        """`patience` is how many seconds a worker may take for a task, and `metrics` are the names
        of those that workers test by."""
        super().__init__()
        self.away: set[int] = set()
        self._units = units
        self._codecs = codecs
        self._clock = clock
        self._patience = patience
        self._metrics = metrics
        self._began = 0.0  # when the run began, by the clock
        self._open: dict[int, Open] = {}
        self._reliability = Reliability(workers)
        self._frozen_holders = FrozenTensorHolders(units)
        self._unacknowledged: dict[int, int] = {}
        """Rounds of updates that the strategy has not yet taken or dropped."""
        self._used = [0] * workers
        """The round of each worker's latest update that was used; 0 before the first."""

    @property
    def now(self) -> float:
        return self._clock() - self._began

    @abstractmethod
    def send(self, task: Task) -> None:
        """Send a task, in place of the one that its worker may have."""

    @abstractmethod
    def _give_up_on(self, worker: int, reason: str) -> Lost:
        """Lose a worker whose task is not waited for any longer."""

    @abstractmethod
    def _withdraw(self, ended: Open) -> None:
        """Nobody waits for the answer to a task any more."""

    def acknowledge(self, worker: int, *, used: bool) -> None:
        round_ = self._unacknowledged.pop(worker)
        if used:
            self._used[worker] = round_

    def _framed(self, task: Task) -> tuple[Frame, bool]:
        """A task's message, and whether it brings all that the worker needs."""
        model = encode_model(task, self._units, self._codecs.down)
        frozen = self._frozen_holders.tensors_for(task)
        frame = task_frame(task, model, self._used[task.worker], frozen)
        return frame, frozen is None or bool(frozen.tensors)

    def _accept(self, answer: bytes, asked: Open) -> Update | None:
        """The update in the answer to a task, which ends the task; an error if it cannot be used.

        A worker may lack frozen tensors that it was thought to have. Then it is sent the task once
        more, with them, and there is no update yet.
        """
        task = asked.task
        self.count_answer(len(answer))
        try:
            update = read_answer(answer, task, self._units, self._codecs, self._metrics)
            self._reliability.check_samples(update)
        except UpdateError as error:
            self._frozen_holders.forget(task.worker)
            if isinstance(error, LackingError) and not asked.is_complete:
                self.send(task)
                return None
            raise
        self._frozen_holders.answered(task)
        self._end_task(task.worker)
        self._reliability.succeeded(update)
        self._unacknowledged[task.worker] = update.round
        return update

    def _until_next(self, *others: float) -> float:
        """Seconds until something is due even if no worker does anything: until a task has taken
        too long, or until one of these times."""
        times = [each.sent + self._patience for each in self._open.values()]
        return max(0.0, min([*times, *others]) - self._clock())

    def _give_up(self) -> Iterator[Happening]:
        """Lose workers that have taken too long for their tasks."""
        for worker, each in list(self._open.items()):
            # A round that closes over one loss gives others new tasks.
            is_current = self._open.get(worker) is each
            if is_current and self._clock() - each.sent > self._patience:
                yield self._give_up_on(
                    worker, f"it has not answered for {short_duration(self._patience)}"
                )

    def _lose(self, worker: int, reason: str) -> Lost:
        self._end_task(worker)
        self.away.add(worker)
        return Lost(worker, reason)

    def _end_task(self, worker: int) -> None:
        ended = self._open.pop(worker, None)
        if ended is not None:
            self.count_task(ended.size)
            self._withdraw(ended)
