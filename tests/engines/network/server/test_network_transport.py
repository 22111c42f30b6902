"""The network as a transport, with a fleet and a clock that a test controls."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.codecs import codec
from adaptcl.codecs.codec import Codecs, Memory
from adaptcl.data.description import SampleForm
from adaptcl.engines.loop import Loop
from adaptcl.engines.network.frames import Frame, pack_kept
from adaptcl.engines.network.invitation import Invitation, Reply
from adaptcl.engines.network.messages import (
    END,
    INVITE,
    TASK,
    WAIT,
    read_frozen,
    read_task,
    read_used,
    update_frame,
    waiting_in_words,
)
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.attendance import Quorum
from adaptcl.engines.network.server.fleet import (
    Came,
    Fleet,
    FleetEvent,
    Left,
    Progressed,
    Replied,
    Silent,
)
from adaptcl.engines.network.server.network_transport import NetworkTransport
from adaptcl.errors import AdaptCLError
from adaptcl.events import (
    Event,
    PhaseBegan,
    RoundFinished,
    UpdateArrived,
    Waiting,
    Warned,
    WorkerJoined,
    WorkerLost,
    WorkerSilent,
)
from adaptcl.records import RoundRecord
from adaptcl.storage import Tree
from adaptcl.strategies import STRATEGIES, Job, Reaction, strategy_class
from adaptcl.strategies.synchronous import SynchronousSettings
from adaptcl.training import Arrival, Recipe, Task, Update
from adaptcl.training.objectives.evaluation import Score
from adaptcl.training.wire import HeldFrozenTensors, LackingError, encode_update, frozen_tensors
from adaptcl.units import UnitMap, trace

MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
UNITS: UnitMap = trace(MODEL, torch.zeros(2, 1, 8, 8))
PLAIN = codec("plain", {})
BEGIN = 100.0
"""What the fleet's clock shows when a run begins."""

ALL = Quorum(2, 3600.0)

Seconds = Callable[[Task], float]


class FakeFleet:
    """A fleet of two workers, in which every task takes the time that a test says."""

    def __init__(
        self,
        seconds: Seconds = lambda _: 1.0,
        samples: Callable[[Task], int] = lambda _: 5,
        connected: Sequence[int] = (0, 1),
    ) -> None:
        self._seconds = seconds
        self._samples = samples
        self._coming: list[tuple[float, FleetEvent]] = []
        self.time = BEGIN
        self.connected = set(connected)
        self.sent: list[tuple[int, str, Frame]] = []
        """Worker, kind and content of each message."""
        self.tasks: list[tuple[int, int, int]] = []
        """Worker, round and round of the latest used update of each task."""
        self.frozen: dict[int, HeldFrozenTensors | None] = {}
        """The frozen tensors that workers have."""
        self.forgetful: set[int] = set()
        """Workers that say they lack frozen tensors, whatever they get."""
        self.brought: list[tuple[int, int]] = []
        """Worker and round of the tasks that brought frozen tensors."""
        self.replies: dict[int, list[Reply]] = {}
        """What workers say to their invitations, if it is not the usual."""

    def now(self) -> float:
        return self.time

    def send(self, worker: int, kind: str, content: bytes, answer: int = 0) -> str:
        frame = Frame.from_bytes(content)
        self.sent.append((worker, kind, frame))
        name = f"message {len(self.sent)}"
        seconds, reply = 0.0, self._reply(worker).frame()
        if kind == TASK:
            seconds, reply = self._carry_out(worker, frame)
        at = self.time + seconds
        self._coming.append((at, Replied(worker, name, reply.to_bytes(), self.time, at)))
        return name

    def _carry_out(self, worker: int, frame: Frame) -> tuple[float, Frame]:
        if (brought := read_frozen(frame, UNITS)) is not None:
            self.frozen[worker] = brought
            self.brought.append((worker, frame.header["round"]))
        try:
            if worker in self.forgetful:
                raise LackingError
            task = read_task(frame, UNITS, PLAIN, self.frozen.get(worker))
        except LackingError:
            return 0.0, Reply(error="LackingError").frame()
        self.tasks.append((worker, task.round, read_used(frame, task)))
        state = {key: tensor + worker + 1 for key, tensor in task.state.items()}
        update = Update(worker, task.round, state, task.kept, self._samples(task), 1.0)
        payload, _ = encode_update(update, task, UNITS, PLAIN, Memory())
        return self._seconds(task), update_frame(update, payload)

    def _reply(self, worker: int) -> Reply:
        waiting = self.replies.get(worker)
        return waiting.pop(0) if waiting else Reply()

    def forget(self, message: str) -> None:
        self._coming = [
            (at, each)
            for at, each in self._coming
            if not isinstance(each, Replied) or each.message != message
        ]

    def happens(self, event: FleetEvent, at: float) -> None:
        """Something happens so many seconds after the beginning."""
        self._coming.append((BEGIN + at, event))

    def wait(self, timeout: float) -> list[FleetEvent]:
        first = min((at for at, _ in self._coming), default=math.inf)
        # A wait always takes a little longer than asked.
        self.time = min(first, self.time + timeout + 1e-6)
        due = [event for at, event in self._coming if at <= self.time]
        self._coming = [each for each in self._coming if each[0] > self.time]
        for event in due:
            if isinstance(event, Left):
                self.connected.discard(event.worker)
            elif isinstance(event, Came):
                self.connected.add(event.worker)
        return due


class Run:
    """A run of two workers over a fake fleet, with a deadline of 1.5 times the slowest update."""

    def __init__(
        self,
        fleet: FakeFleet,
        rounds: int,
        *,
        judging: float = 0.0,
        strategy: str = "fedavg",
        quorum: Quorum = ALL,
        **settings: Any,
    ) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        """When each of them was."""
        self.checkpoints: list[Tree] = []
        kind = strategy_class(strategy)
        chosen: Any = kind.Settings(**settings)
        if isinstance(chosen, SynchronousSettings) and "deadline" not in settings:
            chosen = kind.Settings(**{"deadline": 1.5, **settings})
        self.strategy = kind(Job(UNITS, dict(MODEL.state_dict()), 2, rounds, Recipe(), 1), chosen)

        class Judging:
            def judge(self, *_: object) -> Score:
                fleet.time += judging
                return Score(1.0, {"accuracy": 0.5})

        def hear(event: Event) -> None:
            self.events.append(event)
            self.times.append(round(fleet.time - BEGIN, 3))

        inputs = SampleForm((1, 8, 8), "uint8", None, None, ("0", "1"))
        invitation = Invitation("run", 0, "print", {}, inputs, {})
        self.network = NetworkTransport(
            2,
            UNITS,
            Codecs(PLAIN, PLAIN),
            cast(Fleet, fleet),
            invitation,
            patience=3600.0,
            quorum=quorum,
        )
        self._loop = Loop(self.strategy, self.network, 2, Judging(), [hear])

    def when(self, kind: type[Event], worker: int) -> list[float]:
        """The moments of a worker's events of a kind."""
        both = zip(self.events, self.times, strict=True)
        return [
            at for e, at in both if isinstance(e, kind) and getattr(e, "worker", None) == worker
        ]

    def phases(self, worker: int) -> list[tuple[float, str]]:
        """What began with a worker's tasks, and when."""
        both = zip(self.events, self.times, strict=True)
        return [(at, e.phase) for e, at in both if isinstance(e, PhaseBegan) and e.worker == worker]

    def lost(self) -> list[tuple[int, int, str]]:
        return [(e.worker, e.round, e.reason) for e in self.events if isinstance(e, WorkerLost)]

    def waits(self) -> list[tuple[int, tuple[int, ...]]]:
        """Who was waited for, with the second in which that was said."""
        both = zip(self.events, self.times, strict=True)
        return [(round(at), each.workers) for each, at in both if isinstance(each, Waiting)]

    def warnings(self) -> list[tuple[int, str]]:
        """With the second in which each was."""
        both = zip(self.events, self.times, strict=True)
        return [(round(at), each.message) for each, at in both if isinstance(each, Warned)]

    def go(self, resume: Tree | None = None) -> list[RoundRecord]:
        self._loop.run(self.checkpoints.append, resume)
        return [each.record for each in self.events if isinstance(each, RoundFinished)]


def workers(record: RoundRecord) -> list[int]:
    return [each.worker for each in record.workers]


def only(worker: int, round_: int, seconds: float) -> Seconds:
    """One task takes its time, all others a second."""
    return lambda task: seconds if (task.worker, task.round) == (worker, round_) else 1.0


def useless(worker: int, times: int) -> Callable[[Task], int]:
    """An impossible number of samples in a worker's first answers."""
    left = iter(range(times))
    return lambda task: 0 if task.worker == worker and next(left, None) is not None else 5


def unused(records: Sequence[RoundRecord]) -> tuple[int, int]:
    """Bytes sent and received beyond those of the updates that were used."""
    used = [worker for record in records for worker in record.workers]
    return (
        sum(r.bytes_sent for r in records) - sum(w.bytes_sent for w in used),
        sum(r.bytes_received for r in records) - sum(w.bytes_received for w in used),
    )


# Time ------------------------------------------------------------------------------------------


def test_update_times_are_what_the_server_measured() -> None:
    records = Run(FakeFleet(lambda task: 1.0 + task.worker), rounds=3).go()
    assert [round(each.virtual_time_s, 3) for each in records] == [2.0, 4.0, 6.0]
    assert [w.update_time_s for w in records[0].workers] == pytest.approx([1.0, 2.0])
    assert unused(records) == (0, 0)


@pytest.mark.parametrize("strategy", ["fedasync-s", "ssp-s", "fedbuff"])
def test_strategies_without_a_barrier_run_unchanged(strategy: str) -> None:
    run = Run(FakeFleet(lambda task: 1.0 + task.worker), rounds=4, strategy=strategy)
    records = run.go()
    assert len(records) == run.strategy.rounds
    assert run.lost() == []


def test_what_comes_at_the_moment_at_which_the_run_ends_changes_nothing() -> None:
    """The deadline of the last round passes with no answer, then both come at once: the first
    closes the round and with it the run."""
    run = Run(FakeFleet(lambda task: 1.0 if task.round == 1 else 2.0), rounds=2)
    records = run.go()
    assert [(each.round, workers(each)) for each in records] == [(1, [0, 1]), (2, [0])]
    assert len(run.checkpoints) == 2
    delivered = run.strategy.model()["3.bias"] - MODEL.state_dict()["3.bias"]
    torch.testing.assert_close(delivered, torch.full((10,), 1.5 + 1.0))


def test_a_deadline_closes_rounds_without_a_worker_that_is_only_late() -> None:
    run = Run(FakeFleet(only(1, 2, math.inf)), rounds=4)
    records = run.go()
    assert [each.missing for each in records] == [(), (1,), (1,), (1,)]
    assert run.lost() == []


def test_a_deadline_that_passes_while_a_round_is_judged_waits_for_what_is_there() -> None:
    """Both answers of a round arrive while the server tests the last model, longer than the
    deadline."""
    records = Run(FakeFleet(), rounds=3, judging=60.0).go()
    assert [workers(each) for each in records] == [[0, 1]] * 3


def test_a_run_that_goes_on_has_as_many_seconds_left_as_it_had() -> None:
    """Judging takes half a second of the one and a half that the second round has."""
    first = Run(FakeFleet(), rounds=2, judging=0.5)
    first.go()
    second = Run(FakeFleet(only(1, 2, math.inf)), rounds=2)
    (record,) = second.go(first.checkpoints[0])
    assert (record.round, workers(record), record.missing) == (2, [0], (1,))
    assert record.virtual_time_s == pytest.approx(1.0 + 0.5 + 1.0)
    assert second.lost() == []


# Workers that come, go and come back -----------------------------------------------------------


def test_a_worker_that_answers_too_late_is_left_out_and_taken_back() -> None:
    fleet = FakeFleet(only(1, 1, 3605.0))
    run = Run(fleet, rounds=10, deadline=0.0)
    records = run.go()
    assert run.lost() == [(1, 1, "it has not answered for 60 min")]
    assert run.when(WorkerJoined, 1) == [0, 3605]
    assert workers(records[0]) == [0]
    assert workers(records[-1]) == [0, 1]
    sent, received = unused(records)
    assert sent == pytest.approx(records[0].workers[0].bytes_sent, rel=0.01)
    assert received == records[0].workers[0].bytes_received, "it has travelled all the same"


@pytest.mark.parametrize("strategy", ["fedavg", "ssp-s"])
def test_a_worker_that_is_restarted_in_a_task_gets_the_same_task_again(strategy: str) -> None:
    fleet = FakeFleet(lambda _: 2.0)
    fleet.happens(Came(1), at=3.0)
    run = Run(fleet, rounds=3, strategy=strategy)
    records = run.go()
    assert run.lost() == [(1, 2, "it was restarted")]
    assert run.when(WorkerJoined, 1) == [0, 3]
    assert run.phases(1) == [(3, "sending")]
    assert [task for task in fleet.tasks if task[0] == 1][1:3] == [(1, 2, 1)] * 2
    done = [worker for record in records for worker in workers(record)]
    assert [done.count(worker) for worker in (0, 1)] == [3, 3]


def test_it_is_told_when_a_worker_trains_and_when_its_answer_comes() -> None:
    fleet = FakeFleet(lambda _: 2.0)
    first_task = "message 3"  # after two invitations
    fleet.happens(Progressed(0, first_task, "training"), at=0.5)
    fleet.happens(Progressed(0, "message 1", "receiving"), at=0.7)
    fleet.happens(Progressed(0, first_task, "receiving"), at=1.5)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.phases(0) == [(0.5, "training"), (1.5, "receiving")]
    assert run.when(UpdateArrived, 0) == [2.0]


def test_the_first_time_after_a_restart_does_not_count_as_the_workers_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = FakeFleet(lambda _: 2.0)
    fleet.happens(Came(1), at=3.0)
    run = Run(fleet, rounds=4)
    cold = []
    receive = run.strategy.receive

    def note(arrival: Arrival) -> Reaction:
        cold.append((arrival.update.worker, arrival.update.round, arrival.timing.is_cold))
        return receive(arrival)

    monkeypatch.setattr(run.strategy, "receive", note)
    run.go()
    assert [each[:2] for each in cold if each[2]] == [(1, 2)]
    assert len(cold) == 8


@pytest.mark.parametrize(
    ("said_goodbye", "reason"), [(False, "it is not heard of any more"), (True, "it has left")]
)
def test_a_worker_that_leaves_is_lost_and_taken_back_when_it_comes(
    said_goodbye: bool, reason: str
) -> None:
    fleet = FakeFleet()
    fleet.happens(Left(1, said_goodbye), at=1.5)
    fleet.happens(Came(1), at=4.5)
    run = Run(fleet, rounds=8)
    records = run.go()
    assert run.lost() == [(1, 2, reason)]
    assert records[2].missing == (1,)
    assert run.when(WorkerJoined, 1) == [0, 4.5]
    assert workers(records[1]) == [0]
    assert workers(records[-1]) == [0, 1]


def test_a_silent_worker_is_named_if_it_has_a_task() -> None:
    fleet = FakeFleet(lambda task: 10.0 + 20 * task.worker)
    fleet.happens(Silent(1, 10.0, 30.0), at=8.0)
    fleet.happens(Silent(0, 10.0, 30.0), at=20.0)
    run = Run(fleet, rounds=1, deadline=0.0)
    run.go()
    assert [each for each in run.events if isinstance(each, WorkerSilent)] == [
        WorkerSilent(1, 10.0, 30.0)
    ]


def test_a_worker_whose_model_differs_takes_no_part_until_it_comes_with_the_right_one() -> None:
    fleet = FakeFleet()
    fleet.replies[1] = [Reply(error="its model differs."), Reply(error="its data cannot be used.")]
    for second in (10.0, 20.0):
        fleet.happens(Came(1), at=second)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.warnings() == [
        (0, "Worker 1 cannot take part: its model differs."),
        (10, "Worker 1 cannot take part: its data cannot be used."),
    ]
    assert run.when(WorkerJoined, 1) == [20]


def test_a_server_names_the_workers_it_waits_for_at_the_start() -> None:
    fleet = FakeFleet(connected=[0])
    fleet.happens(Came(1), at=300.0)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.waits() == [(at, (1,)) for at in (30, 90, 210)]
    told = [(worker, waiting_in_words(frame)) for worker, kind, frame in fleet.sent if kind == WAIT]
    assert told == [(0, "waiting, as worker 0, for the other one")] * 4


def test_who_leaves_before_the_run_begins_is_named_with_all_that_are_missing() -> None:
    fleet = FakeFleet(connected=[0])
    fleet.happens(Left(0, said_goodbye=True), at=7)
    fleet.happens(Came(1), at=8)
    fleet.happens(Came(0), at=9)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.lost() == [(0, 1, "it has left")]
    assert run.waits() == [(7, (0, 1))]
    assert run.when(WorkerJoined, 0) == [0, 9]


def test_a_worker_that_answers_its_invitation_and_is_gone_at_once_is_not_there() -> None:
    fleet = FakeFleet(connected=[0])
    fleet.happens(Came(1), at=5)
    fleet.happens(Left(1), at=5)
    fleet.happens(Came(1), at=100)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.when(WorkerJoined, 1) == [100]


def test_a_server_names_the_workers_it_waits_for_when_all_are_lost() -> None:
    """Neither answers within the hour that the server gives them; then both are restarted."""
    hanging = iter(range(2))
    fleet = FakeFleet(lambda _: math.inf if next(hanging, None) is not None else 1.0)
    for worker in (0, 1):
        fleet.happens(Came(worker), at=3700.0)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.waits() == [(at, (0, 1)) for at in (3630, 3690)]


def test_the_log_of_a_run_says_who_was_turned_away() -> None:
    fleet = FakeFleet()
    fleet.happens(TurnedAway("Somebody was turned away."), at=0.5)
    run = Run(fleet, rounds=1)
    run.go()
    assert run.warnings() == [(0, "Somebody was turned away.")]


GOES_ON = "The run goes on without worker 1, which has not come; it is taken back at any time."


def test_the_second_run_of_a_job_goes_on_without_a_worker_that_is_gone() -> None:
    fleet = FakeFleet(connected=[0])
    fleet.happens(Came(1), at=33.5)
    run = Run(fleet, rounds=8, quorum=Quorum(1))
    records = run.go()
    assert run.warnings()[-1] == (30, GOES_ON)
    assert run.lost() == [(1, 1, "it has not come")]
    assert [task[0] for task in fleet.tasks[:3]] == [0, 0, 0]
    assert workers(records[0]) == [0]
    assert workers(records[-1]) == [0, 1]


def test_a_run_may_begin_with_enough_workers_once_the_others_have_had_their_time() -> None:
    fleet = FakeFleet(connected=[])
    fleet.happens(Came(0), at=50)
    fleet.happens(Came(1), at=653.5)
    run = Run(fleet, rounds=8, quorum=Quorum(1, 600.0))
    records = run.go()
    assert run.warnings() == [(650, GOES_ON)]
    assert run.lost() == [(1, 1, "it has not come")]
    assert run.when(WorkerJoined, 1) == [653.5]
    assert records[0].missing == (1,)
    assert workers(records[-1]) == [0, 1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_ends_well_without_a_worker_that_never_comes(strategy: str) -> None:
    """And with the same model, to the bit, if its server is resumed meanwhile."""
    whole = Run(FakeFleet(connected=[0]), rounds=4, strategy=strategy, quorum=Quorum(1, 60.0))
    whole.go()
    again = Run(FakeFleet(connected=[0]), rounds=4, strategy=strategy, quorum=Quorum(1, 60.0))
    records = again.go(copy.deepcopy(whole.checkpoints[0]))
    assert [record.missing for record in records] == [(1,)] * (len(whole.checkpoints) - 1) != []
    states = (each.strategy.model() for each in (whole, again))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_with_too_few_workers_a_run_does_not_begin_however_long_it_takes() -> None:
    fleet = FakeFleet(connected=[0])
    fleet.happens(Came(1), at=9000)
    run = Run(fleet, rounds=1, quorum=Quorum(2, 600.0))
    run.go()
    assert not run.warnings()
    assert run.when(WorkerJoined, 1) == [9000]


def test_workers_that_have_had_their_time_are_not_waited_for_again() -> None:
    """One that is connected prepares itself, and is."""
    quorum = Quorum(1, had_time=True)
    run = Run(FakeFleet(connected=[0]), rounds=1, quorum=quorum)
    run.go()
    assert run.warnings() == [(0, GOES_ON)]
    both = Run(FakeFleet(), rounds=1, quorum=quorum)
    both.go()
    assert not both.warnings()


@pytest.mark.parametrize("strategy", ["fedavg", "adaptcl", "fedasync-s", "ssp-s"])
def test_with_too_few_workers_a_run_pauses_and_its_clock_stands_still(strategy: str) -> None:
    def times(*happens: tuple[float, FleetEvent]) -> tuple[Run, list[RoundRecord]]:
        fleet = FakeFleet(lambda task: 1.0 + task.worker)
        for at, event in happens:
            fleet.happens(event, at)
        run = Run(fleet, rounds=4, strategy=strategy, quorum=Quorum(2, 600.0, least=2))
        return run, run.go()

    run, records = times((2.5, Left(1, said_goodbye=True)), (1000.0, Came(1)))
    assert run.waits()[0] == (3, (1,)), "once the other's answer is there"
    assert next(each.least for each in run.events if isinstance(each, Waiting)) == 2
    assert run.when(WorkerJoined, 1) == [0, 1000]
    assert records[-1].virtual_time_s < 15, "the clock did not count the pause"
    times_s = [w.update_time_s for record in records for w in record.workers]
    assert max(times_s) == pytest.approx(2.0), "nor did anybody's update time"
    assert run.strategy.finished
    assert 1 in workers(records[-1])
    assert all(0 <= (w.begin_s or 0) <= r.virtual_time_s for r in records for w in r.workers)


def test_a_deadline_does_not_pass_during_a_pause() -> None:
    fleet = FakeFleet()
    fleet.happens(Left(1), at=1.5)
    fleet.happens(Came(1), at=500.0)
    run = Run(fleet, rounds=5, quorum=Quorum(2, 600.0, least=2), deadline=3.0)
    records = run.go()
    assert [each.missing for each in records] == [(), (1,), (), (), ()]


def test_a_run_that_paused_is_resumed_only_with_enough_workers() -> None:
    first = Run(FakeFleet(), rounds=3)
    first.go()
    fleet = FakeFleet(connected=[0])
    fleet.happens(Came(1), at=5000.0)
    second = Run(fleet, rounds=3, quorum=Quorum(2, 60.0, least=2))
    records = second.go(first.checkpoints[0])
    assert not second.warnings()
    assert [workers(each) for each in records] == [[0, 1]] * 2


def test_the_last_test_does_not_wait_for_those_that_are_not_there() -> None:
    """Nobody could end a run whose training is done."""
    fleet = FakeFleet()
    fleet.happens(Left(1), at=1.5)
    run = Run(fleet, rounds=2, quorum=Quorum(2, 600.0, least=2))
    run.go()
    task = Task(0, 3, dict(MODEL.state_dict()), UNITS.everything(), Recipe(), only_tests=True)
    run.network.send(task)
    assert fleet.tasks[-1][:2] == (0, 3)


def test_the_wait_for_the_others_begins_when_the_first_is_there() -> None:
    fleet = FakeFleet(connected=[])
    fleet.happens(Came(0), at=50)
    run = Run(fleet, rounds=1, quorum=Quorum(1))
    run.go()
    assert run.warnings()[-1] == (80, GOES_ON)


def test_a_resumed_run_goes_on_without_a_worker_that_is_gone() -> None:
    first = Run(FakeFleet(lambda _: 50.0), rounds=3)
    first.go()
    fleet = FakeFleet(lambda _: 50.0, connected=[0])
    second = Run(fleet, rounds=3)
    records = second.go(first.checkpoints[0])
    assert second.warnings()[-1] == (100, GOES_ON), "twice the longest update time"
    assert second.lost() == [(1, 2, "it has not come")]
    assert [workers(each) for each in records] == [[0], [0]]


def test_a_worker_that_was_lost_before_a_resume_is_taken_back_if_it_is_there() -> None:
    fleet = FakeFleet()
    fleet.happens(Left(1), at=1.5)
    first = Run(fleet, rounds=6)
    first.go()
    second = Run(FakeFleet(), rounds=6)
    records = second.go(first.checkpoints[2])
    assert second.when(WorkerJoined, 1) == [0]
    assert [workers(each) for each in records] == [[0, 1]] * 3


def test_a_worker_that_was_lost_before_a_resume_is_waited_for_and_then_said_to_be_missing() -> None:
    fleet = FakeFleet()
    fleet.happens(Left(1), at=1.5)
    first = Run(fleet, rounds=6)
    first.go()
    second = Run(FakeFleet(connected=[0]), rounds=6)
    records = second.go(first.checkpoints[2])
    assert second.warnings()[-1] == (30, GOES_ON)
    assert second.lost() == [(1, 4, "it has not come")]
    assert [each.missing for each in records] == [(1,)] * 3


def test_a_run_of_which_only_the_results_are_left_needs_nobody() -> None:
    first = Run(FakeFleet(), rounds=2)
    first.go()
    fleet = FakeFleet(connected=[])
    Run(fleet, rounds=2).go(first.checkpoints[-1])
    assert fleet.sent == []


def test_at_the_end_every_connected_worker_hears_that_the_job_is_over() -> None:
    """Also one that comes just then, and one that leaves is not waited for."""
    fleet = FakeFleet()
    run = Run(fleet, rounds=1)
    run.go()
    fleet.happens(Came(1), at=fleet.time - BEGIN)
    fleet.sent.clear()
    run.network.say_goodbye()
    assert [(worker, kind) for worker, kind, _ in fleet.sent] == [(0, END), (1, END), (1, END)]
    assert fleet.time - BEGIN < 2


# Updates that were used, and those that were not -----------------------------------------------


@pytest.mark.parametrize(("late_updates", "used"), [("drop", 1), ("count", 2)])
def test_a_worker_hears_which_of_its_updates_was_used_last(late_updates: str, used: int) -> None:
    fleet = FakeFleet(only(1, 2, 2.0))
    Run(fleet, rounds=5, late_updates=late_updates).go()
    of_worker_1 = [(round_, last) for worker, round_, last in fleet.tasks if worker == 1]
    assert of_worker_1[:3] == [(1, 0), (2, 1), (of_worker_1[2][0], used)]
    assert all(last == round_ - 1 for worker, round_, last in fleet.tasks if worker == 0)


def test_an_update_that_was_refused_was_not_used() -> None:
    fleet = FakeFleet(samples=useless(1, 1))
    records = Run(fleet, rounds=20).go()
    refused = [(round_, last) for worker, round_, last in fleet.tasks if worker == 1]
    assert refused[0] == (1, 0)
    assert refused[1][0] > 1
    assert refused[1][1] == 0
    sent, received = unused(records)
    assert min(sent, received) > 0, "it has travelled all the same"


def test_a_run_that_goes_on_still_knows_which_updates_were_used() -> None:
    first = Run(FakeFleet(), rounds=3)
    first.go()
    fleet = FakeFleet()
    Run(fleet, rounds=3).go(first.checkpoints[1])
    assert fleet.tasks == [(0, 3, 2), (1, 3, 2)]


# Workers that fail -----------------------------------------------------------------------------


def test_a_worker_that_fails_is_asked_again_after_a_pause_that_grows() -> None:
    run = Run(FakeFleet(samples=useless(1, 2)), rounds=60)
    records = run.go()
    assert run.when(WorkerLost, 1) == [1, 7]
    assert run.when(WorkerJoined, 1) == [0, 6, 27]
    assert workers(records[-1]) == [0, 1]


def test_a_worker_that_fails_three_times_is_dismissed_until_it_is_restarted() -> None:
    fleet = FakeFleet(samples=useless(1, 3))
    fleet.happens(Came(1), at=40.0)
    run = Run(fleet, rounds=60)
    records = run.go()
    assert run.when(WorkerLost, 1) == [1, 7, 28]
    assert {reason for _, _, reason in run.lost()} == {"its answer could not be used"}
    assert run.warnings()[-1] == (28, "Worker 1 gets no more tasks after 3 such answers.")
    (dismissed,) = [
        frame.header["dismissed"]
        for worker, kind, frame in fleet.sent
        if kind == INVITE and "dismissed" in frame.header and worker == 1
    ]
    assert dismissed.endswith("start it again when that is fixed.")
    assert run.when(WorkerJoined, 1) == [0, 6, 27, 40]
    assert workers(records[-1]) == [0, 1]


def test_a_worker_with_other_data_is_dismissed_at_once_and_may_come_back_with_the_right() -> None:
    fleet = FakeFleet(samples=lambda task: 10 if (task.worker, task.round) == (1, 2) else 5)
    fleet.happens(Came(1), at=30.0)
    run = Run(fleet, rounds=40)
    records = run.go()
    sentence = "worker 1 has 10 samples, but it had 5 when it began"
    assert sentence in run.warnings()[0][1]
    (dismissed,) = [f.header["dismissed"] for _, _, f in fleet.sent if "dismissed" in f.header]
    assert dismissed.startswith(sentence)
    assert run.when(WorkerJoined, 1) == [0, 30]
    assert workers(records[-1]) == [0, 1]


def test_where_every_worker_fails_the_run_ends_with_the_last_reason() -> None:
    run = Run(FakeFleet(samples=lambda _: 0), rounds=2)
    with pytest.raises(AdaptCLError, match=r"No worker is left: .* samples"):
        run.go()
    assert len(run.lost()) == 6
    assert not any(isinstance(each, UpdateArrived) for each in run.events)


def test_a_run_that_goes_on_holds_workers_to_the_samples_they_had_before() -> None:
    first = Run(FakeFleet(), rounds=2)
    first.go()
    more = FakeFleet(samples=lambda task: 5 + 100 * task.worker)
    second = Run(more, rounds=2)
    (record,) = second.go(first.checkpoints[0])
    assert workers(record) == [0]
    ((_, warned),) = second.warnings()
    assert "worker 1 has 105 samples, but it had 5 when it began" in warned


def test_a_resumed_server_asks_everybody_again() -> None:
    first = Run(FakeFleet(samples=useless(1, 3)), rounds=60)
    first.go()
    assert len(first.when(WorkerLost, 1)) == 3
    second = Run(FakeFleet(), rounds=60)
    records = second.go(first.checkpoints[50])
    assert workers(records[-1]) == [0, 1]


# Frozen tensors --------------------------------------------------------------------------------


@pytest.fixture
def _frozen_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(MODEL)
    model[0].requires_grad_(False)
    monkeypatch.setitem(globals(), "MODEL", model)
    monkeypatch.setitem(globals(), "UNITS", trace(model, torch.zeros(2, 1, 8, 8)))


@pytest.mark.usefixtures("_frozen_filters")
def test_frozen_tensors_travel_once_unless_a_worker_has_lost_or_brings_them() -> None:
    def forget_after_two_rounds(task: Task) -> float:
        if (task.worker, task.round) == (0, 2):
            fleet.frozen[0] = None
        return 1.0

    fleet = FakeFleet(forget_after_two_rounds)
    everything = UNITS.everything()
    known = HeldFrozenTensors(everything, frozen_tensors(MODEL.state_dict(), UNITS), UNITS)
    fleet.frozen[1] = known
    fleet.replies[1] = [Reply(holds=pack_kept(everything))]
    run = Run(fleet, rounds=4)
    records = run.go()
    assert fleet.brought == [(0, 1), (0, 3)]
    assert [workers(record) for record in records] == [[0, 1]] * 4
    assert not run.lost()
    assert not run.warnings()
    for name, tensor in frozen_tensors(run.strategy.model(), UNITS).items():
        assert torch.equal(tensor, MODEL.state_dict()[name])


@pytest.mark.usefixtures("_frozen_filters")
def test_a_worker_that_lacks_what_it_was_sent_fails_like_any_other() -> None:
    fleet = FakeFleet()
    fleet.forgetful = {0}
    run = Run(fleet, rounds=1)
    assert [workers(record) for record in run.go()] == [[1]]
    assert run.lost() == [(0, 1, "its answer could not be used")]
