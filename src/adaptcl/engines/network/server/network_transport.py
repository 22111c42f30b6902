"""The network as a transport: tasks travel to real workers, on the real clock.

Workers come, answer, fall silent and come back at any time. A worker that connects is invited
first, and counts as present only once its model turns out to be the server's. A worker that was
restarted during a task gets the same task again, and the strategy never hears of it. An answer
that cannot be used never reaches the strategy either: the worker counts as lost and soon comes
back, unless that happens too often (`patience.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from adaptcl.codecs.codec import Codecs
from adaptcl.engines.network.frames import Frame, unpack_kept
from adaptcl.engines.network.gate import read_answer
from adaptcl.engines.network.invitation import Invitation, Reply, dismissal
from adaptcl.engines.network.messages import END, INVITE, TASK, task_frame
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.fleet import Came, Fleet, FleetEvent, Left, Progressed, Replied
from adaptcl.engines.network.server.patience import (
    STRIKES,
    OtherDataError,
    Reliability,
    Reminder,
    going_on_without,
    longest_wait,
)
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost, Traffic
from adaptcl.errors import UpdateError
from adaptcl.events import PhaseBegan, Warned
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Task, Timing
from adaptcl.training.wire.encoding import encode_model
from adaptcl.training.wire.frozen import FrozenTensorHolders, LackingError
from adaptcl.units import UnitMap, size_bytes

_GOODBYE_S = 30.0  # how long to wait at least for connected workers to hear that the job is over


@dataclass(frozen=True)
class OpenTask:
    """A task that a worker has been sent and has not answered."""

    task: Task
    message: str
    sent: float  # when, by the fleet's clock
    size: int  # in bytes
    is_complete: bool = True  # whether it brings all that the worker needs, frozen tensors too

    def timing(self, reply: Replied, trained: float, began: float) -> Timing:
        """Where the update time went, in a run that began at `began`. The worker only says how long
        it trained: the total is what the server measured, whatever the worker claims."""
        total = max(0.0, reply.arrived - self.sent)
        send = min(total, max(0.0, reply.received - self.sent))
        train = min(trained, total - send)
        phases = (send, train, total - send - train)
        return Timing(*phases, self.size, len(reply.content), begin=self.sent - began)


class NetworkTransport:
    """A transport between a strategy and the workers of a fleet."""

    def __init__(
        self,
        workers: int,
        units: UnitMap,
        codecs: Codecs,
        fleet: Fleet,
        invitation: Invitation,
        *,
        metrics: Collection[str] = (),
        patience: float,
        waits_for_all: bool = True,
    ) -> None:
        """`metrics` are the names of those that workers test by. `patience` is how many seconds a
        worker may take for a task. The first run of a job `waits_for_all` workers, however long
        they take to come; later ones do not."""
        self._traffic = Traffic()
        self.away: set[int] = set()
        self._everybody = set(range(workers))
        self._units = units
        self._codecs = codecs
        self._fleet = fleet
        self._invitation = invitation
        self._metrics = metrics
        self._patience = patience
        self._waits_for_all = waits_for_all
        self._running = False
        self._began = 0.0  # when the run began, by the fleet's clock
        self._invited: set[str] = set()  # invitations without an answer
        self._ready: set[int] = set()  # workers whose model is the server's
        self._came_back: set[int] = set()  # workers that were lost before a resume and are here now
        self._absent: set[int] = set()  # workers that the run begins without
        self._open: dict[int, OpenTask] = {}
        self._given_up: set[str] = set()  # tasks whose answers come too late to be used
        self._pausing: dict[int, float] = {}  # workers that have failed, and when to ask them again
        self._reliability = Reliability(workers)
        self._reminder = Reminder(fleet.now)
        self._update_times = [0.0] * workers  # each worker's latest
        self._unsettled: dict[int, int] = {}
        """Rounds of updates that the strategy has not yet taken or dropped."""
        self._cold: set[int] = set()
        """Workers that have not answered since they came back or were sent their task again."""
        self._frozen_holders = FrozenTensorHolders(units)
        self._used = [0] * workers
        """The round of each worker's latest update that was used; 0 before the first."""

    @property
    def now(self) -> float:
        return self._fleet.now() - self._began

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        if resume is not None:
            self._restore(resume)
        for worker in self._fleet.connected:  # they came during an earlier run of this job
            self._invite(worker)
        yield from self._gather(for_all=self._waits_for_all and resume is None)
        self._came_back = self.away & self._ready
        self._began = self._fleet.now() - (resume["now"] if resume else 0.0)
        self._running = True

    def deliver(self, task: Task) -> None:
        if task.worker in self._absent:
            return  # Flower takes no message for a node that it has never seen.
        before = self._open.get(task.worker)
        if before is not None:
            self._traffic.count_task(before.size)
            self._fleet.forget(before.message)
        model = encode_model(task, self._units, self._codecs.down)
        frozen = self._frozen_holders.tensors_for(task)
        content = task_frame(task, model, self._used[task.worker], frozen).to_bytes()
        sent = self._fleet.now()
        largest = size_bytes(self._units, task.kept)
        message = self._fleet.send(task.worker, TASK, content, largest)
        is_complete = frozen is None or bool(frozen.tensors)
        self._open[task.worker] = OpenTask(task, message, sent, len(content), is_complete)

    def begin(self) -> None:
        """Workers begin as soon as a task reaches them."""

    def next(self, deadline: float) -> Iterator[Happening]:
        if self._came_back or self._absent:
            yield from self._tell_who_is_there()
            return
        self._reliability.refuse_if_all_are_excluded()
        # While anybody works, the run goes on without those that are lost.
        yield from self._remind(set() if self._open else self.away - self._pausing.keys())
        events = self._fleet.wait(self._until_next(deadline))
        for event in events:
            yield from self._handle(event)
        # After an event the deadline may be another, so the loop asks again.
        if not events and self.now >= deadline:
            yield Expired()
        yield from self._end_pauses()
        yield from self._give_up()

    def settle(self, worker: int, *, used: bool) -> None:
        round_ = self._unsettled.pop(worker)
        if used:
            self._used[worker] = round_

    def close_round(self) -> tuple[int, int]:
        return self._traffic.take_round()

    def snapshot(self) -> Tree:
        return {
            "now": self.now,
            "away": sorted(self.away),
            "update_times": list(self._update_times),
            "used": list(self._used),
            **self._reliability.snapshot(),
        }

    def _restore(self, tree: Tree) -> None:
        self.away = set(tree["away"])
        self._update_times = tree["update_times"]
        self._used = tree["used"]
        self._reliability.restore(tree)

    def close(self) -> None:
        """The fleet stays open for the job's next run."""

    def say_goodbye(self) -> None:
        """Tell all workers that the job is over, and wait until they have heard it."""
        end = Frame({}, {}).to_bytes()
        waiting = {worker: self._fleet.send(worker, END, end) for worker in self._fleet.connected}
        # A worker that still trains for a round that closed without it hears it afterwards.
        until = self._fleet.now() + max(_GOODBYE_S, 2 * max(self._update_times))
        while waiting and self._fleet.now() < until:
            for event in self._fleet.wait(0.2):
                match event:
                    case Left(worker):
                        waiting.pop(worker, None)
                    case Replied(worker, message) if waiting.get(worker) == message:
                        del waiting[worker]
                    case Came(worker):
                        waiting[worker] = self._fleet.send(worker, END, end)

    # Waiting -----------------------------------------------------------------------------------

    def _gather(self, *, for_all: bool) -> Iterator[Happening]:
        """Wait for everybody the strategy counts on: without end `for_all`, else only as long as
        is reasonable for workers that have taken part before."""
        began = self._fleet.now()
        while missing := self._everybody - self.away - self._ready:
            left = math.inf
            if self._ready and not for_all:
                limits = (self._fleet.connected, self._patience, self._update_times)
                left = began + longest_wait(missing, *limits) - self._fleet.now()
            if left <= 0:
                yield Warned(going_on_without(missing))
                break
            yield from self._remind(missing)
            for event in self._fleet.wait(min(left, self._reminder.due_in())):
                yield from self._handle(event)
        self._absent = missing

    def _tell_who_is_there(self) -> Iterator[Happening]:
        """Workers that came back before a resume, and those that the run begins without."""
        while self._came_back:
            yield from self._welcome(self._came_back.pop())
        while self._absent:
            yield self._lose(self._absent.pop(), "it has not come")

    def _until_next(self, deadline: float) -> float:
        """Seconds until something is due even if no worker does anything."""
        now = self._fleet.now()
        times = [each.sent + self._patience for each in self._open.values()]
        times += [*self._pausing.values(), now + self._reminder.due_in(), self._began + deadline]
        return max(0.0, min(times) - now)

    def _remind(self, missing: set[int]) -> Iterator[Happening]:
        sentence = self._reminder.about(missing)
        if sentence:
            yield Warned(sentence)

    def _end_pauses(self) -> Iterator[Happening]:
        for worker, until in list(self._pausing.items()):
            if self._fleet.now() >= until:
                del self._pausing[worker]
                yield from self._welcome(worker)

    def _give_up(self) -> Iterator[Happening]:
        """Lose workers that have taken too long for their tasks."""
        for worker, each in list(self._open.items()):
            # A round that closes over one loss gives others new tasks.
            is_current = self._open.get(worker) is each
            if is_current and self._fleet.now() - each.sent > self._patience:
                self._given_up.add(each.message)
                yield self._lose(worker, f"it has not answered for {self._patience:g} s")

    # What workers do ---------------------------------------------------------------------------

    def _handle(self, event: FleetEvent) -> Iterator[Happening]:
        match event:
            case Came(worker):
                was_working = worker in self._ready and worker in self._open
                self._ready.discard(worker)
                self._pausing.pop(worker, None)
                self._reliability.restarted(worker)
                self._invite(worker)
                if was_working:
                    yield Lost(worker, "it was restarted", keeps_task=True)
            case Left(worker):
                self._ready.discard(worker)
                self._pausing.pop(worker, None)
                if self._running and worker not in self.away:
                    yield self._lose(worker, "it is not heard of any more")
            case TurnedAway(sentence):
                yield Warned(sentence)
            case Replied(worker, message) if message in self._invited:
                self._invited.discard(message)
                yield from self._admit(worker, event.content)
            case Replied(worker, message) if message in self._given_up:
                self._given_up.discard(message)
                self._traffic.count_answer(len(event.content))
                yield from self._welcome(worker)
            case Replied(worker, message) | Progressed(worker, message):
                open_task = self._open.get(worker)
                if open_task is None or open_task.message != message:
                    return
                if isinstance(event, Progressed):
                    yield PhaseBegan(worker, event.phase)
                else:
                    yield from self._receive(open_task, event)

    def _receive(self, open_task: OpenTask, reply: Replied) -> Iterator[Happening]:
        worker = open_task.task.worker
        self._traffic.count_answer(len(reply.content))
        try:
            update = read_answer(
                reply.content, open_task.task, self._units, self._codecs, self._metrics
            )
            self._reliability.check_samples(update)
        except UpdateError as error:
            self._frozen_holders.forget(worker)
            if isinstance(error, LackingError) and not open_task.is_complete:
                self._cold.add(worker)
                self.deliver(open_task.task)
                yield PhaseBegan(worker, "sending")
            else:
                yield from self._punish(worker, error)
            return
        self._frozen_holders.answered(open_task.task)
        del self._open[worker]
        self._traffic.count_task(open_task.size)
        self._reliability.succeeded(update)
        timing = open_task.timing(reply, update.seconds, self._began)
        timing = replace(timing, is_cold=worker in self._cold)
        self._cold.discard(worker)
        self._update_times[worker] = timing.update_time
        self._unsettled[worker] = update.round
        yield Arrived(Arrival(update, timing))

    def _punish(self, worker: int, error: UpdateError) -> Iterator[Happening]:
        """Ask a worker again later whose answer cannot be used, or dismiss it."""
        self._reliability.failed(worker, str(error))
        yield Warned(f"Worker {worker}'s answer was not used: {error}")
        is_excluded = self._reliability.is_excluded(worker)
        if is_excluded:
            yield Warned(f"Worker {worker} gets no more tasks after {STRIKES} such answers.")
        # With other data it would fail again; its owner can start it with the right data.
        if is_excluded or isinstance(error, OtherDataError):
            self._dismiss(worker)
        else:
            self._pausing[worker] = self._fleet.now() + self._reliability.pause(worker)
        yield self._lose(worker, "its answer could not be used")

    # Coming and going --------------------------------------------------------------------------

    def _invite(self, worker: int) -> None:
        content = replace(self._invitation, worker=worker).frame().to_bytes()
        self._invited.add(self._fleet.send(worker, INVITE, content))

    def _dismiss(self, worker: int) -> None:
        """End a worker's process, and tell its owner why."""
        self._ready.discard(worker)
        reason = dismissal(self._reliability.dismissal(worker))
        self._fleet.send(worker, INVITE, reason.to_bytes())

    def _admit(self, worker: int, content: bytes) -> Iterator[Happening]:
        """Let a worker take part if its answer to the invitation allows it."""
        try:
            answer = Reply.read(Frame.from_bytes(content))
            packed = answer.holds
            held = None if packed is None else unpack_kept(packed, self._units.count)
        except UpdateError as error:
            answer, held = Reply(error=str(error)), None
        if not answer.error and answer.fingerprint != self._invitation.fingerprint:
            answer = Reply(error="its model differs from the server's")
        if answer.error:
            yield Warned(f"Worker {worker} cannot take part: {answer.error}")
        else:
            if self._running:
                self._cold.add(worker)
            self._ready.add(worker)
            self._frozen_holders.claim(worker, held)
            yield from self._welcome(worker)

    def _welcome(self, worker: int) -> Iterator[Happening]:
        """Give a worker that has come its work."""
        if worker in self.away:
            # Before the run begins, `next` does not yet tell the strategy.
            if self._running:
                self.away.discard(worker)
                yield Joined(worker)
        elif not self._running:
            yield Joined(worker)
        elif worker in self._open:
            self.deliver(self._open[worker].task)
            yield Joined(worker, keeps_task=True)
            yield PhaseBegan(worker, "sending")

    def _lose(self, worker: int, reason: str) -> Lost:
        left = self._open.pop(worker, None)
        if left is not None:
            self._traffic.count_task(left.size)
            if left.message not in self._given_up:
                self._fleet.forget(left.message)
        self.away.add(worker)
        return Lost(worker, reason)
