"""The only loop: send tasks, take what happens next, ask the strategy, close rounds.

One turn reads downwards. The transport says what happens next: an update arrives, a worker is lost
or comes back, a deadline passes. The loop hands that to the strategy and sends the tasks that
the strategy gives back. When a round closes, the evaluator tests the model, the listeners get the
round's record, the stop rule says whether the run goes on, and the checkpoint is saved.

How tasks travel and what time it is, only the transport knows (`transport.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from adaptcl.engines.heterogeneity import heterogeneity_of_present
from adaptcl.engines.stop_rule import StopRule
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost, Transport
from adaptcl.events import (
    Event,
    Listener,
    PhaseBegan,
    RoundFinished,
    TaskSent,
    UpdateArrived,
    Waiting,
    Warned,
    WorkerJoined,
    WorkerLost,
    WorkerSilent,
)
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.records import RoundRecord
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Task, Update
from adaptcl.training.objectives.evaluation import Score

Save = Callable[[Tree], None]


class Evaluator(Protocol):
    """Tests the global model when a round closes."""

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        """The score of the model as it would be delivered now; None if it is not tested.

        `is_last` says that no round follows, as far as that is known before the test.
        """
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
        last_test: Callable[[Strategy], LastTest] | None = None,
    ) -> None:
        """`last_test` gives what follows a finished run, where workers test what it delivers."""
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
                self._send(self._strategy.outstanding())
            self._take_turns(self._strategy, lambda: self._is_over, save)
            if self._last_test is not None:
                test = self._last_test(self._strategy)
                self._deadline = math.inf
                self._act(test.start(self._transport.away))
                self._take_turns(test, lambda: test.finished)
        finally:
            self._transport.close()

    def _take_turns(
        self,
        answering: Strategy | LastTest,
        is_over: Callable[[], bool],
        save: Save | None = None,
    ) -> None:
        """Let a strategy, or the last test, answer whatever happens until it is over."""
        while not is_over():
            raise_if_interrupted()
            for happening in self._transport.next(self._deadline):
                self._act(self._react(happening, answering), save)
                if is_over():
                    break  # what else has happened would change a model that is done

    @property
    def _is_over(self) -> bool:
        return self._strategy.finished or self._stop_rule.stopped_by is not None

    def _react(self, happening: Happening, answering: Strategy | LastTest) -> Reaction:
        """Tell of what has happened, and hand it to who answers."""
        self._announce(happening)
        match happening:
            case Arrived(arrival):
                worker = arrival.update.worker
                self._update_times[worker] = arrival.timing.update_time
                reaction = answering.receive(arrival)
                self._transport.acknowledge(worker, used=not reaction.dropped)
                return reaction
            case Lost(worker, keeps_task=False):
                self._update_times[worker] = 0.0  # it may come back on another link
                return answering.lost(worker)
            case Joined(worker, keeps_task=False):
                return answering.joined(worker)
            case Expired():
                self._deadline = math.inf
                return answering.expired()
        return Reaction()

    def _act(self, reaction: Reaction, save: Save | None = None) -> None:
        """Do what the answer asks for."""
        self._send(reaction.tasks)
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

    def _send(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            expected = self._transport.send(task)
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
            record = untested.tested(score.loss, score.main, score.metrics, score.variants)
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
            case Lost(worker, reason):
                self._tell(WorkerLost(worker, round_, reason))
            case Joined(worker):
                self._tell(WorkerJoined(worker, round_))
            case PhaseBegan() | Warned() | Waiting() | WorkerSilent():
                self._tell(happening)

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


class LastTest:
    """What follows a finished run: each worker that is there tests the model once.

    The loop asks it as it asks a strategy.
    """

    def __init__(self, tasks: Sequence[Task], take: Callable[[Update], None]) -> None:
        """`take` gets what the workers answer to these tasks."""
        self._tasks = tasks
        self._take = take
        self._waiting: set[int] = set()

    def start(self, away: Container[int]) -> Reaction:
        tasks = tuple(task for task in self._tasks if task.worker not in away)
        self._waiting = {task.worker for task in tasks}
        return Reaction(tasks)

    def receive(self, arrival: Arrival) -> Reaction:
        self._take(arrival.update)
        self._waiting.discard(arrival.update.worker)
        return Reaction(dropped=True)  # nothing was trained

    def lost(self, worker: int) -> Reaction:
        self._waiting.discard(worker)
        return Reaction()

    def joined(self, worker: int) -> Reaction:
        return Reaction()

    def expired(self) -> Reaction:
        return Reaction()

    @property
    def finished(self) -> bool:
        return not self._waiting
