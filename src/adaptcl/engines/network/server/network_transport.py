"""The network as a transport: tasks travel to real workers, on the real clock.

Workers come, answer, fall silent and come back at any time. A worker that connects is invited
first, and counts as present only once it has found its model to be the server's. A worker that was
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
from adaptcl.engines.network.invitation import Invitation, Reply, dismissal
from adaptcl.engines.network.messages import END, INVITE, TASK
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.attendance import Quorum, tell_waiting
from adaptcl.engines.network.server.farewell import GOODBYE_S, tell_all
from adaptcl.engines.network.server.fleet import (
    Came,
    Fleet,
    FleetEvent,
    Left,
    Progressed,
    Replied,
    Silent,
)
from adaptcl.engines.network.server.patience import (
    STRIKES,
    OtherDataError,
    Reminder,
    departure,
    going_on_without,
    longest_wait,
)
from adaptcl.engines.network.server.remote_transport import OpenTask, RemoteTransport
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost
from adaptcl.errors import UpdateError
from adaptcl.events import PhaseBegan, Waiting, Warned, WorkerSilent
from adaptcl.storage import Tree
from adaptcl.training import Arrival, Task, Timing
from adaptcl.units import UnitMap, size_bytes

_NOT_COME = "it has not come"


@dataclass(frozen=True)
class SentTask(OpenTask):
    """A task in a message of the fleet."""

    message: str

    def timing(self, reply: Replied, trained: float, began: float) -> Timing:
        """Where the update time went, in a run that began at `began`. The worker only says how long
        it trained: the total is what the server measured, whatever the worker claims."""
        total = max(0.0, reply.arrived - self.sent)
        send = min(total, max(0.0, reply.received - self.sent))
        train = min(trained, total - send)
        phases = (send, train, total - send - train)
        return Timing(*phases, self.size, len(reply.content), begin=self.sent - began)


class NetworkTransport(RemoteTransport[SentTask]):
    """A transport between a strategy and the workers of a fleet.

    The fleet stays open when it is closed, for the job's next run.
    """

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
        quorum: Quorum,
    ) -> None:
        super().__init__(workers, units, codecs, fleet.now, patience, metrics)
        self._everybody = set(range(workers))
        self._fleet = fleet
        self._invitation = invitation
        self._quorum = quorum
        self._running = False
        self._invited: set[str] = set()  # invitations without an answer
        self._ready: set[int] = set()  # workers whose model is the server's
        self._came_back: set[int] = set()  # workers that were lost before a resume and are here now
        self._absent: set[int] = set()  # workers that the run begins without
        self._held: dict[int, Task] = {}  # tasks that wait until enough workers are there
        self._paused: float | None = None  # since when nobody works because too few are there
        self._given_up: set[str] = set()  # tasks whose answers come too late to be used
        self._pausing: dict[int, float] = {}  # workers that have failed, and when to ask them again
        self._reminder = Reminder(fleet.now)
        self._update_times = [0.0] * workers  # each worker's latest
        self._cold: set[int] = set()
        """Workers that have not answered since they came back or were sent their task again."""

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        quorum = self._quorum
        if resume is not None:
            self._restore(resume)
            quorum = quorum.resumed()
        for worker in self._fleet.connected:  # they came during an earlier run of this job
            self._invite(worker)
        yield from self._gather(quorum)
        self._came_back = self.away & self._ready
        for worker in sorted(self.away - self._ready):  # the strategy knows that already
            yield Lost(worker, _NOT_COME, keeps_task=True)
        self._began = self._clock() - (resume["now"] if resume else 0.0)
        self._running = True

    @property
    def now(self) -> float:
        return super().now if self._paused is None else self._paused - self._began

    def send(self, task: Task) -> None:
        if task.worker in self._absent:
            return  # Flower takes no message for a node that it has never seen.
        self._end_task(task.worker)
        if self._are_too_few and not task.only_tests:
            self._held[task.worker] = task
        else:
            self._transmit(task)

    def _transmit(self, task: Task) -> None:
        frame, is_complete = self._framed(task)
        content = frame.to_bytes()
        sent = self._clock()
        largest = size_bytes(self._units, task.kept)
        message = self._fleet.send(task.worker, TASK, content, largest)
        self._open[task.worker] = SentTask(task, len(content), is_complete, sent, message)

    def next(self, deadline: float) -> Iterator[Happening]:
        if self._came_back or self._absent:
            yield from self._tell_who_is_there()
            return
        self._reliability.refuse_if_all_are_excluded()
        yield from self._pause_or_go_on()
        # While anybody works, the run goes on without those that are lost.
        yield from self._remind(set() if self._open else self.away - self._pausing.keys())
        due = (*self._pausing.values(), self._clock() + self._reminder.due_in())
        expires = self._began + deadline if self._paused is None else math.inf
        events = self._fleet.wait(self._until_next(expires, *due))
        for event in events:
            yield from self._handle(event)
        # After an event the deadline may be another, so the loop asks again.
        if not events and self.now >= deadline:
            yield Expired()
        yield from self._end_pauses()
        yield from self._give_up()

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

    def say_goodbye(self) -> None:
        """Tell all workers that the job is over, and wait until they have heard it."""
        tell_all(self._fleet, END, Frame({}, {}), self.goodbye_s)

    @property
    def goodbye_s(self) -> float:
        """How long to wait: a worker that still trains for a round that closed without it hears it
        only afterwards."""
        return max(GOODBYE_S, 2 * max(self._update_times))

    @property
    def _missing(self) -> set[int]:
        """Workers that are not there before the run begins."""
        return self._everybody - self._ready

    @property
    def _are_too_few(self) -> bool:
        return len(self._everybody - self.away - self._absent) < self._quorum.least

    # Waiting -----------------------------------------------------------------------------------

    def _gather(self, quorum: Quorum) -> Iterator[Happening]:
        """Wait for everybody; once enough are there, no longer than the quorum says."""
        enough_since: float | None = None
        while missing := self._missing:
            left = math.inf
            if len(self._ready) >= quorum.begin:
                enough_since = self._clock() if enough_since is None else enough_since
                wait = quorum.seconds
                if wait is None:
                    wait = longest_wait(
                        missing,
                        self._fleet.connected,
                        self._patience,
                        self._update_times,
                        had_time=quorum.had_time,
                    )
                left = enough_since + wait - self._clock()
            if left <= 0:
                yield Warned(going_on_without(missing))
                break
            yield from self._remind(missing)
            for event in self._fleet.wait(min(left, self._reminder.due_in())):
                yield from self._handle(event)
        self._absent = missing - self.away

    def _tell_who_is_there(self) -> Iterator[Happening]:
        """Workers that came back before a resume, and those that the run begins without."""
        while self._came_back:
            yield from self._welcome(self._came_back.pop())
        while self._absent:
            yield self._lose(self._absent.pop(), _NOT_COME)

    def _pause_or_go_on(self) -> Iterator[Happening]:
        """Send the tasks that were held once enough workers are there. Until then the run's clock
        stands still from when the last answer is there: a pause is nobody's update time."""
        if self._are_too_few:
            if self._paused is None and self._held and not self._open:
                self._paused = self._clock()
                yield from self._name(self.away - self._pausing.keys())
            return
        if self._paused is not None:
            self._began += self._clock() - self._paused
            self._paused = None
        while self._held:
            worker, task = self._held.popitem()
            self._transmit(task)
            yield PhaseBegan(worker, "sending")

    def _remind(self, missing: set[int]) -> Iterator[Happening]:
        if self._reminder.is_due(missing):
            yield from self._name(missing)

    def _name(self, missing: set[int]) -> Iterator[Happening]:
        if missing:
            yield Waiting(tuple(sorted(missing)), self._quorum.least if self._held else 0)
            tell_waiting(self._fleet, self._ready, missing, len(self._everybody))

    def _end_pauses(self) -> Iterator[Happening]:
        for worker, until in list(self._pausing.items()):
            if self._clock() >= until:
                del self._pausing[worker]
                yield from self._welcome(worker)

    def _give_up_on(self, worker: int, reason: str) -> Lost:
        self._given_up.add(self._open[worker].message)
        return self._lose(worker, reason)

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
            case Left(worker, said_goodbye):
                yield from self._miss(worker, departure(said_goodbye=said_goodbye))
            case Silent(worker, seconds, limit) if worker in self._open:
                yield WorkerSilent(worker, seconds, limit)
            case TurnedAway(sentence):
                yield Warned(sentence)
            case Replied(worker, message) if message in self._invited:
                self._invited.discard(message)
                yield from self._admit(worker, event.content)
            case Replied(worker, message) if message in self._given_up:
                self._given_up.discard(message)
                self.count_answer(len(event.content))
                yield from self._welcome(worker)
            case Replied(worker, message) | Progressed(worker, message):
                sent = self._open.get(worker)
                if sent is None or sent.message != message:
                    return
                if isinstance(event, Progressed):
                    yield PhaseBegan(worker, event.phase)
                else:
                    yield from self._receive(sent, event)

    def _miss(self, worker: int, reason: str) -> Iterator[Happening]:
        """Do without a worker that has gone. Before the run begins it is waited for, and the
        strategy need not know."""
        was_ready = worker in self._ready
        self._ready.discard(worker)
        self._pausing.pop(worker, None)
        if worker in self.away:
            return
        if self._running:
            yield self._lose(worker, reason)
        elif was_ready:
            yield Lost(worker, reason)
            yield Waiting(tuple(sorted(self._missing)))

    def _receive(self, sent: SentTask, reply: Replied) -> Iterator[Happening]:
        worker = reply.worker
        try:
            update = self._accept(reply.content, sent)
        except UpdateError as error:
            yield from self._punish(worker, error)
            return
        if update is None:
            self._cold.add(worker)
            yield PhaseBegan(worker, "sending")
            return
        timing = sent.timing(reply, update.seconds, self._began)
        timing = replace(timing, is_cold=worker in self._cold)
        self._cold.discard(worker)
        self._update_times[worker] = timing.update_time
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
            self._pausing[worker] = self._clock() + self._reliability.pause(worker)
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
        if answer.error:
            yield Warned(f"Worker {worker} cannot take part: {answer.error}")
        elif worker in self._fleet.connected:  # it may have answered and left at once
            if self._running:
                self._cold.add(worker)
            self._ready.add(worker)
            self._frozen_holders.claim(worker, held)
            if not self._running:
                # Those that prepare themselves are there in a moment.
                absent = self._missing - self._fleet.connected
                tell_waiting(self._fleet, [worker], absent, len(self._everybody))
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
            self._transmit(self._open[worker].task)
            yield Joined(worker, keeps_task=True)
            yield PhaseBegan(worker, "sending")

    def _lose(self, worker: int, reason: str) -> Lost:
        self._held.pop(worker, None)
        return super()._lose(worker, reason)

    def _withdraw(self, ended: SentTask) -> None:
        if ended.message not in self._given_up:
            self._fleet.forget(ended.message)
