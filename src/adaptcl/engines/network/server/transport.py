"""A task under way over the network, and where the time went when its answer is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adaptcl.codecs.codec import Codec
from adaptcl.data.samples import Inputs
from adaptcl.engines.loop import Deadline, Traffic, tell_round
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.gate import read_answer
from adaptcl.engines.network.messages import (
    END,
    INVITE,
    TASK,
    Answer,
    Invitation,
    dismissal,
    task_frame,
)
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.conduct import STRIKES, Conduct, OtherDataError
from adaptcl.engines.network.server.fleet import Came, Fleet, Happening, Left, Replied
from adaptcl.engines.network.server.waiting import Reminder, going_on_without, longest_wait
from adaptcl.errors import UpdateError
from adaptcl.events import Listener, UpdateArrived, Warned, WorkerJoined, WorkerLost
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Task, Timing
from adaptcl.units import State, UnitMap


@dataclass(frozen=True)
class OpenTask:
    """A task that a worker has been sent and has not answered."""

    task: Task
    message: str
    sent: float
    """When, by the fleet's clock."""
    size: int
    """In bytes."""

    def timing(self, reply: Replied, seconds: float) -> Timing:
        """The parts of the update time, of which the worker says only how long it trained: the
        total is what the server saw, whatever the worker says."""
        total = max(0.0, reply.arrived - self.sent)
        send = min(total, max(0.0, reply.received - self.sent))
        train = min(seconds, total - send)
        return Timing(send, train, total - send - train, self.size, len(reply.content))


# The loop of every engine, on the real clock: deliver tasks, wait, hand over what happened.
#
# Workers come, answer, fall silent and come back whenever they like. A worker that comes is
# invited first; only when its model has turned out to be the server's does it count as there. One
# that was restarted in the middle of a task gets the same task again. What cannot be used of an
# answer never reaches the strategy: it learns that the worker is lost, and soon after that it is
# back, unless that happens too often (`conduct.py`).

_GOODBYE_S = 30.0
"""How long to wait at least for connected workers to hear that all is over."""


@dataclass(frozen=True)
class RunInvitation:
    """What every worker of a run is told; its number is added for each."""

    run: str
    fingerprint: str
    settings: dict[str, object]
    inputs: Inputs
    outline: dict[str, str]

    def to(self, worker: int) -> Invitation:
        """The invitation for one worker."""
        return Invitation(
            self.run, worker, self.fingerprint, self.settings, self.inputs, self.outline
        )


class Network:
    """Runs a strategy with the workers of a fleet until it is finished."""

    def __init__(
        self,
        strategy: Strategy,
        workers: int,
        units: UnitMap,
        codec: Codec,
        fleet: Fleet,
        call: RunInvitation,
        *,
        judge: Callable[[State, Closed], float | None],
        listener: Listener,
        patience: float,
        connected: set[int],
        first: bool = True,
    ) -> None:
        """`patience` is how many seconds a worker may take for a task before it is given up;
        `connected` are workers whose coming was seen already, in an earlier run. Only the `first`
        run of a job waits for all workers, however long they take to come."""
        self._strategy = strategy
        self._units = units
        self._codec = codec
        self._fleet = fleet
        self._call = call
        self._judge = judge
        self._tell = listener
        self._patience = patience
        self._connected = connected
        self._first = first
        self._began = 0.0
        self._invited: dict[str, int] = {}
        self._ready: set[int] = set()
        self._away: set[int] = set()
        """Workers that the strategy has been told are lost."""
        self._missing: set[int] = set()
        """Workers that are not there when it begins, which it will be told."""
        self._given_up: dict[str, int] = {}
        """Messages whose answers come too late to be used."""
        self._conduct = Conduct(workers)
        self._pausing: dict[int, float] = {}
        """Workers that have failed, and when to ask them again."""
        self._reminder = Reminder(fleet.now)
        self._open: dict[int, OpenTask] = {}
        self._used = [0] * workers
        """The round of each worker's latest update that was used; 0 before the first."""
        self._deadline = Deadline()
        self._update_times = [0.0] * workers
        self._traffic = Traffic()
        self._rounds_closed = 0

    def run(self, checkpoint: Callable[[Tree], None], resume: Tree | None = None) -> None:
        """Run to the end; `checkpoint` gets all that is needed to go on after every round."""
        if resume is not None:
            self._restore(resume)
            if self._strategy.finished:
                return  # Nobody is needed for what is only left to be written down.
        for worker in self._connected:
            self._invite(worker)
        self._missing = self._gather(for_all=self._first and resume is None)
        self._began = self._fleet.now() - (resume["now"] if resume else 0.0)
        if resume is None:
            self._act(self._strategy.start(), checkpoint)
        else:
            for reaction in self._go_on(resume.get("deadline_in")):
                self._act(reaction, checkpoint)
        while self._missing:
            worker = self._missing.pop()
            self._act(self._lose(worker, "it has not come"), checkpoint)
        while not self._strategy.finished:
            for reaction in self._next():
                self._act(reaction, checkpoint)
                if self._strategy.finished:
                    break  # What else has happened would change a model that is done.

    def say_goodbye(self) -> None:
        """Tell all workers that nothing more will come, and let them hear it."""
        end = Frame({}, {}).to_bytes()
        waiting = {worker: self._fleet.send(worker, END, end) for worker in self._fleet.connected}
        # Who still trains for a round that others have closed hears it afterwards.
        until = self._fleet.now() + max(_GOODBYE_S, 2 * max(self._update_times))
        while waiting and self._fleet.now() < until:
            for happening in self._fleet.wait(0.2):
                match happening:
                    case Left(worker):
                        waiting.pop(worker, None)
                    case Replied(worker, message) if waiting.get(worker) == message:
                        del waiting[worker]
                    case Came(worker):
                        waiting[worker] = self._fleet.send(worker, END, end)

    @property
    def now(self) -> float:
        """Seconds of the run so far."""
        return self._fleet.now() - self._began

    # What happens ------------------------------------------------------------------------------

    def _gather(self, *, for_all: bool) -> set[int]:
        """Wait until everybody is there whom the strategy counts on, or else, where they have
        worked together before, for as long as is worth it; gives those to go on without."""
        began = self._fleet.now()
        while missing := set(range(len(self._update_times))) - self._away - self._ready:
            left = math.inf
            if self._ready and not for_all:
                worth = (self._fleet.connected, self._patience, self._update_times)
                left = began + longest_wait(missing, *worth) - self._fleet.now()
            if left <= 0:
                self._tell(Warned(going_on_without(missing)))
                break
            self._remind(missing)
            for happening in self._fleet.wait(min(left, self._reminder.due_in())):
                # Before the beginning there is nothing yet for a strategy to react to.
                for _ in self._handle(happening, began=False):
                    pass
        return missing

    def _go_on(self, deadline_in: float | None) -> Iterator[Reaction]:
        """Give out again what was under way, in the time that was left for it."""
        for task in self._strategy.outstanding():
            self._deliver(task)
        if deadline_in is not None:
            self._deadline.at = self._fleet.now() + deadline_in
        for worker in self._away & self._ready:
            yield from self._welcome(worker)

    def _next(self) -> Iterator[Reaction]:
        """Wait for the next things to happen and hand them to the strategy."""
        self._conduct.refuse_to_wait_in_vain()
        # As long as somebody works, the run goes on without those that are lost.
        self._remind(set() if self._open else self._away - self._pausing.keys())
        for happening in self._fleet.wait(self._until_next()):
            yield from self._handle(happening, began=True)
        if self._fleet.now() >= self._deadline.at:
            self._deadline.clear()
            yield self._strategy.expired()
        for worker, until in list(self._pausing.items()):
            if self._fleet.now() >= until:
                del self._pausing[worker]
                yield from self._welcome(worker)
        for worker, each in list(self._open.items()):
            if self._fleet.now() - each.sent > self._patience:
                self._given_up[each.message] = worker
                yield self._lose(worker, f"it has not answered for {self._patience:g} s")

    def _until_next(self) -> float:
        now = self._fleet.now()
        times = [each.sent + self._patience for each in self._open.values()]
        times += [*self._pausing.values(), now + self._reminder.due_in(), self._deadline.at]
        return max(0.0, min(times) - now)

    def _remind(self, missing: set[int]) -> None:
        sentence = self._reminder.about(missing)
        if sentence:
            self._tell(Warned(sentence))

    def _handle(self, happening: Happening, *, began: bool) -> Iterator[Reaction]:
        match happening:
            case Came(worker):
                if worker in self._ready and worker in self._open:
                    self._tell(WorkerLost(worker, self._rounds_closed + 1, "it was restarted"))
                self._ready.discard(worker)
                self._pausing.pop(worker, None)
                self._conduct.forgive(worker)
                self._invite(worker)
            case Left(worker):
                self._ready.discard(worker)
                self._pausing.pop(worker, None)
                if began and worker not in self._away:
                    yield self._lose(worker, "it is not heard of any more")
            case TurnedAway(sentence):
                self._tell(Warned(sentence))
            case Replied(worker, message) if message in self._invited:
                del self._invited[message]
                if self._accept(worker, happening.content):
                    if began:
                        yield from self._welcome(worker)
                    else:
                        self._tell(WorkerJoined(worker, self._rounds_closed + 1))
            case Replied(worker, message) if message in self._given_up:
                del self._given_up[message]
                self._traffic.answered(len(happening.content))
                yield from self._welcome(worker)
            case Replied(worker, message):
                open_task = self._open.get(worker)
                if open_task is not None and open_task.message == message:
                    yield from self._receive(open_task, happening)

    def _receive(self, each: OpenTask, reply: Replied) -> Iterator[Reaction]:
        worker = each.task.worker
        self._traffic.answered(len(reply.content))
        try:
            reading = read_answer(reply.content, each.task, self._units, self._codec)
            update = reading.update
            self._conduct.check(update)
        except UpdateError as error:
            yield from self._punish(worker, error)
            return
        del self._open[worker]
        self._traffic.task_ended(each.size)
        self._conduct.approve(update)
        timing = each.timing(reply, reading.seconds)
        self._update_times[worker] = timing.update_time
        self._tell(UpdateArrived(worker, update.round, self.now))
        reaction = self._strategy.receive(Arrival(update, timing))
        if not reaction.dropped:
            self._used[worker] = update.round
        yield reaction

    def _punish(self, worker: int, error: UpdateError) -> Iterator[Reaction]:
        self._conduct.blame(worker, str(error))
        self._tell(Warned(f"Worker {worker}'s answer was not used: {error}"))
        out = self._conduct.is_out(worker)
        if out:
            self._tell(Warned(f"Worker {worker} gets no more tasks after {STRIKES} such answers."))
        # With other data it would answer the same again; its owner can start it with the right one.
        if out or isinstance(error, OtherDataError):
            self._dismiss(worker)
        else:
            self._pausing[worker] = self._fleet.now() + self._conduct.pause(worker)
        yield self._lose(worker, "its answer could not be used")

    # Coming and going --------------------------------------------------------------------------

    def _invite(self, worker: int) -> None:
        content = self._call.to(worker).frame().to_bytes()
        self._invited[self._fleet.send(worker, INVITE, content)] = worker

    def _dismiss(self, worker: int) -> None:
        """Let a worker end, and its owner know why."""
        self._ready.discard(worker)
        self._fleet.send(worker, INVITE, dismissal(self._conduct.farewell(worker)).to_bytes())

    def _accept(self, worker: int, content: bytes) -> bool:
        """Whether a worker's answer to its invitation lets it take part."""
        try:
            answer = Answer.read(Frame.from_bytes(content))
        except UpdateError as error:
            answer = Answer(error=str(error))
        if not answer.error and answer.fingerprint != self._call.fingerprint:
            answer = Answer(error="its model differs from the server's")
        if answer.error:
            self._tell(Warned(f"Worker {worker} cannot take part: {answer.error}"))
            return False
        self._ready.add(worker)
        return True

    def _welcome(self, worker: int) -> Iterator[Reaction]:
        """Give a worker that has come its work."""
        if worker in self._away:
            self._away.discard(worker)
            self._tell(WorkerJoined(worker, self._rounds_closed + 1))
            yield self._strategy.joined(worker)
        elif worker in self._open:
            self._tell(WorkerJoined(worker, self._rounds_closed + 1))
            self._deliver(self._open[worker].task)

    def _lose(self, worker: int, reason: str) -> Reaction:
        left = self._open.pop(worker, None)
        if left is not None:
            self._traffic.task_ended(left.size)
            if left.message not in self._given_up:
                self._fleet.forget(left.message)
        self._away.add(worker)
        self._tell(WorkerLost(worker, self._rounds_closed + 1, reason))
        return self._strategy.lost(worker)

    # Carrying out what the strategy wants ------------------------------------------------------

    def _act(self, reaction: Reaction, checkpoint: Callable[[Tree], None]) -> None:
        for task in reaction.tasks:
            self._deliver(task)
        self._deadline.follow(reaction, self._fleet.now())
        if reaction.closed is not None:
            self._finish_round(reaction.closed)
            checkpoint(self._snapshot())

    def _deliver(self, task: Task) -> None:
        if task.worker in self._missing:
            return  # Flower takes no message for a node that it has never seen.
        before = self._open.get(task.worker)
        if before is not None:
            self._traffic.task_ended(before.size)
            self._fleet.forget(before.message)
        content = task_frame(task, self._used[task.worker]).to_bytes()
        sent = self._fleet.now()
        message = self._fleet.send(task.worker, TASK, content)
        self._open[task.worker] = OpenTask(task, message, sent, len(content))

    def _finish_round(self, closed: Closed) -> None:
        now = self.now
        self._rounds_closed = closed.round
        accuracy = self._judge(self._strategy.model(), closed)
        times, away = self._update_times, self._away
        tell_round(self._tell, closed, now, accuracy, times, away, self._traffic)

    # Checkpoints -------------------------------------------------------------------------------

    def _snapshot(self) -> Tree:
        return {
            "now": self.now,
            "away": sorted(self._away),
            # On another machine, or after a restart, the clock shows something else.
            "deadline_in": self._deadline.left(self._fleet.now()),
            **self._conduct.snapshot(),
            "update_times": list(self._update_times),
            "used": list(self._used),
            "rounds_closed": self._rounds_closed,
            "strategy": self._strategy.snapshot(),
        }

    def _restore(self, tree: Tree) -> None:
        self._away = set(tree["away"])
        self._conduct.restore(tree)
        self._update_times = tree["update_times"]
        self._used = tree["used"]
        self._rounds_closed = tree["rounds_closed"]
        self._strategy.restore(tree["strategy"])
