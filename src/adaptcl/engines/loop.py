"""The only loop: deliver tasks, take what happens next, ask the strategy, close rounds.

One turn reads downwards. The transport says what happens next: an update arrives, a worker is lost
or comes back, a deadline passes. The loop hands that to the strategy and delivers the tasks that
the strategy gives back. When a round closes, the evaluator tests the model, the listeners get the
round's record, the stop rule says whether the run goes on, and the checkpoint is saved.

A transport only knows how tasks travel and what time it is. There are three: the simulation,
the network, and the grid of somebody's Flower app. A forecast is a simulation that trains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from adaptcl.engines.heterogeneity import heterogeneity_of_present
from adaptcl.engines.stop_rule import StopRule
from adaptcl.events import (
    Event,
    Listener,
    PhaseBegan,
    RoundFinished,
    TaskSent,
    UpdateArrived,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.records import RoundRecord
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Task, Timing, Update
from adaptcl.training.objectives.evaluation import Score


@dataclass(frozen=True)
class Arrived:
    """A worker's update is there."""

    arrival: Arrival


@dataclass(frozen=True)
class Began:
    """A worker's task has come to its next phase."""

    worker: int
    phase: str  # `sending`, `training` or `receiving`


@dataclass(frozen=True)
class Lost:
    """A worker is gone."""

    worker: int
    reason: str
    keeps_task: bool = False  # its task waits for it to come back, so the strategy need not know


@dataclass(frozen=True)
class Joined:
    """A worker came, or came back."""

    worker: int
    keeps_task: bool = False  # it goes on with the task it had, so the strategy need not know


@dataclass(frozen=True)
class Expired:
    """The deadline has passed."""


@dataclass(frozen=True)
class Remarked:
    """Something the user would want to know."""

    sentence: str


Save = Callable[[Tree], None]
Happening = Arrived | Began | Lost | Joined | Expired | Remarked


class Traffic:
    """Bytes that cross the wire, counted as they do and reported round by round.

    A task counts when it ends, answered or not. So what is under way when a run ends, or is done
    again after a resume, is in no sum twice, and a task and its answer are in the same round.
    """

    def __init__(self) -> None:
        self._sent, self._received = 0, 0

    def count_task(self, size: int) -> None:
        self._sent += size

    def count_answer(self, size: int) -> None:
        """An answer counts whether or not it is used."""
        self._received += size

    def take_round(self) -> tuple[int, int]:
        """Bytes sent and received since the last call."""
        moved = self._sent, self._received
        self._sent, self._received = 0, 0
        return moved


class Transport(Protocol):
    """How tasks travel, and what time it is."""

    @property
    def now(self) -> float:
        """Seconds of the run so far."""
        ...

    @property
    def away(self) -> Container[int]:
        """Workers that the strategy counts as lost."""
        ...

    def open(self, resume: Tree | None) -> Iterable[Happening]:
        """Get ready, from a snapshot or from the start; yields what is worth telling."""
        ...

    def deliver(self, task: Task) -> Timing | None:
        """Send a task; gives how long it will take, as far as that is known beforehand.

        After a resume this is a task that was under way, given out again.
        """
        ...

    def begin(self) -> None:
        """All tasks of this moment are delivered: work may begin."""
        ...

    def next(self, deadline: float) -> Iterable[Happening]:
        """Wait for what happens next, one thing or several; `Expired` once `deadline` has come.

        The loop takes one happening at a time and acts on it before it asks for another.
        """
        ...

    def settle(self, worker: int, *, used: bool) -> None:
        """The strategy has taken or dropped the update that arrived from a worker."""
        ...

    def close_round(self) -> tuple[int, int]:
        """A round has closed; gives the bytes sent and received since the one before did."""
        ...

    def snapshot(self) -> Tree:
        """All that `open` needs to go on."""
        ...

    def close(self) -> None:
        """Let go of threads and connections, whether or not the run has ended well."""
        ...


class Evaluator(Protocol):
    """Tests the global model when a round closes."""

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        """The score of the model as it would be delivered now; None if it is not tested.

        `is_last` says that no round follows, as far as that is known before the test.
        """
        ...


class LastTest(Protocol):
    """Has workers test the model that a finished run delivers."""

    def tasks(self, strategy: Strategy) -> Sequence[Task]:
        """A task for each worker that only tests."""
        ...

    def take(self, update: Update) -> None:
        """A worker has answered."""
        ...


class Loop:
    """Runs a strategy over a transport until the strategy is finished or a rule ends the run."""

    def __init__(
        self,
        strategy: Strategy,
        transport: Transport,
        workers: int,
        evaluator: Evaluator,
        listeners: Sequence[Listener],
        stop_rule: StopRule | None = None,
        last_test: LastTest | None = None,
    ) -> None:
        self._strategy = strategy
        self._transport = transport
        self._evaluator = evaluator
        self._listeners = listeners
        self._stop_rule = stop_rule or StopRule()
        self._last_test = last_test
        self._update_times = [0.0] * workers  # each worker's latest; 0 where there is none
        self._deadline = math.inf
        self._rounds_closed = 0

    def run(self, save: Save | None = None, resume: Tree | None = None) -> None:
        """Run to the end. `save` gets a snapshot after every round, and `resume` is one."""
        if resume is not None:
            self._restore(resume)
            if self._is_over:
                return  # only the results are left to be written, and nobody is needed for that
        try:
            for happening in self._transport.open(resume and resume["transport"]):
                self._announce(happening)
            if resume is None:
                self._act(self._strategy.start(), save)
            else:
                self._deliver(self._strategy.outstanding())
            while not self._is_over:
                raise_if_interrupted()
                for happening in self._transport.next(self._deadline):
                    self._act(self._react(happening), save)
                    if self._is_over:
                        break  # what else has happened would change a model that is done
            if self._last_test is not None:
                self._ask_for(self._last_test)
        finally:
            self._transport.close()

    def _ask_for(self, test: LastTest) -> None:
        """Wait for the last test of every worker that is there; what it trains is not needed."""
        asked = [
            task for task in test.tasks(self._strategy) if task.worker not in self._transport.away
        ]
        for task in asked:
            self._transport.deliver(task)
        self._transport.begin()
        waiting = {task.worker for task in asked}
        while waiting:
            raise_if_interrupted()
            for happening in self._transport.next(math.inf):
                match happening:
                    case Arrived(arrival):
                        self._transport.settle(arrival.update.worker, used=False)
                        test.take(arrival.update)
                        waiting.discard(arrival.update.worker)
                    case Lost(worker, keeps_task=False):
                        self._announce(happening)
                        waiting.discard(worker)
                    case Remarked():
                        self._announce(happening)

    @property
    def _is_over(self) -> bool:
        return self._strategy.finished or self._stop_rule.stopped_by is not None

    def _react(self, happening: Happening) -> Reaction:
        """Hand to the strategy what has happened."""
        self._announce(happening)
        match happening:
            case Arrived(arrival):
                worker = arrival.update.worker
                self._update_times[worker] = arrival.timing.update_time
                reaction = self._strategy.receive(arrival)
                self._transport.settle(worker, used=not reaction.dropped)
                return reaction
            case Lost(worker, keeps_task=False):
                self._update_times[worker] = 0.0  # it may come back on another link
                return self._strategy.lost(worker)
            case Joined(worker, keeps_task=False):
                return self._strategy.joined(worker)
            case Expired():
                self._deadline = math.inf
                return self._strategy.expired()
        return Reaction()

    def _act(self, reaction: Reaction, save: Save | None) -> None:
        """Carry out what the strategy wants."""
        self._deliver(reaction.tasks)
        # The next round is trained while the last one is tested and written down.
        self._transport.begin()
        # A deadline lasts until it passes, a later one replaces it, or its round closes.
        if reaction.deadline is not None:
            self._deadline = self._transport.now + reaction.deadline
        elif reaction.closed is not None:
            self._deadline = math.inf
        if reaction.closed is not None:
            self._finish_round(reaction.closed)
            if save is not None:
                save(self._snapshot())

    def _deliver(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            expected = self._transport.deliver(task)
            self._tell(TaskSent(task.worker, task.round, self._transport.now, expected))

    def _finish_round(self, closed: Closed) -> None:
        now = self._transport.now
        self._rounds_closed = closed.round
        sent, received = self._transport.close_round()
        # Where only some workers were asked, the heterogeneity is theirs.
        asked = closed.participants or range(len(self._update_times))
        untested = RoundRecord(
            round=closed.round,
            virtual_time_s=now,
            accuracy=None,
            heterogeneity=heterogeneity_of_present(self._update_times, asked, self._transport.away),
            workers=closed.workers,
            similarity=closed.similarity,
            missing=closed.missing,
            participants=closed.participants,
            bytes_sent=sent,
            bytes_received=received,
        )
        is_last = self._strategy.finished or self._stop_rule.ends_with(untested)
        score = self._evaluator.judge(self._strategy, closed, is_last)
        record = untested
        if score is not None:
            record = untested.tested(score.loss, score.main, score.metrics)
        for warning in closed.warnings:
            self._tell(Warned(warning))
        self._tell(RoundFinished(record))
        self._stop_rule.see(record)

    def _announce(self, happening: Happening) -> None:
        round_ = self._rounds_closed + 1
        match happening:
            case Arrived(arrival):
                update = arrival.update
                self._tell(UpdateArrived(update.worker, update.round, self._transport.now))
            case Began(worker, phase):
                self._tell(PhaseBegan(worker, phase))
            case Lost(worker, reason):
                self._tell(WorkerLost(worker, round_, reason))
            case Joined(worker):
                self._tell(WorkerJoined(worker, round_))
            case Remarked(sentence):
                self._tell(Warned(sentence))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _snapshot(self) -> Tree:
        return {
            "deadline": None if self._deadline == math.inf else self._deadline,
            "update_times": list(self._update_times),
            "rounds_closed": self._rounds_closed,
            "strategy": self._strategy.snapshot(),
            "transport": self._transport.snapshot(),
        }

    def _restore(self, tree: Tree) -> None:
        self._deadline = math.inf if tree["deadline"] is None else tree["deadline"]
        self._update_times = tree["update_times"]
        self._rounds_closed = tree["rounds_closed"]
        self._strategy.restore(tree["strategy"])
