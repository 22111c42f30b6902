"""What depends on the very moment: deadlines, and things that happen at once.

Here a test says how many seconds each worker takes for each task. The fleet that carries this out
has a clock of its own and no network, so that two answers can really come at the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.codecs import codec
from adaptcl.codecs.codec import Memory
from adaptcl.data.samples import Inputs
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.messages import TASK, Answer, read_task, read_used, update_frame
from adaptcl.engines.network.server.fleet import Came, Fleet, Happening, Replied
from adaptcl.engines.network.server.transport import Network, RunInvitation
from adaptcl.events import Event, RoundFinished, Warned, WorkerJoined, WorkerLost
from adaptcl.records import RoundRecord
from adaptcl.storage import Tree
from adaptcl.strategies import Job
from adaptcl.strategies.fedavg import FedAVG
from adaptcl.strategies.synchronous import SynchronousSettings
from adaptcl.training import Recipe, Task, Update
from adaptcl.training.wire import encode
from adaptcl.units import UnitMap, trace

MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
UNITS: UnitMap = trace(MODEL, torch.zeros(2, 1, 8, 8))
PLAIN = codec("plain", {})

Seconds = Callable[[Task], float]


class Timetable:
    """A fleet of two workers, in which every task takes the time that a test says."""

    def __init__(self, seconds: Seconds, samples: Callable[[Task], int] = lambda _: 5) -> None:
        self._seconds = seconds
        self._samples = samples
        self._coming: list[tuple[float, Replied | Came]] = []
        self.time = 100.0
        self.messages = 0
        self.used: list[tuple[int, int, int | None]] = []
        """Of each task its worker, its round, and the round of the latest update that counted."""

    def now(self) -> float:
        return self.time

    def send(self, worker: int, kind: str, content: bytes) -> str:
        self.messages += 1
        name = f"message {self.messages}"
        seconds, answer = 0.0, Answer(fingerprint="print").frame()
        if kind == TASK:
            frame = Frame.from_bytes(content)
            task = read_task(frame, UNITS)
            self.used.append((worker, task.round, read_used(frame, task)))
            seconds = self._seconds(task)
            state = {key: tensor + worker + 1 for key, tensor in task.state.items()}
            update = Update(worker, task.round, state, task.kept, self._samples(task), 1.0)
            answer = update_frame(update, encode(update, task, UNITS, PLAIN, Memory())[0], 0.0)
        at = self.time + seconds
        self._coming.append((at, Replied(worker, name, answer.to_bytes(), self.time, at)))
        return name

    def forget(self, message: str) -> None:
        self._coming = [
            (at, each)
            for at, each in self._coming
            if not isinstance(each, Replied) or each.message != message
        ]

    def comes(self, worker: int, at: float) -> None:
        """A worker comes at some moment, for the first time or again."""
        self._coming.append((at, Came(worker)))

    def wait(self, timeout: float) -> list[Happening]:
        first = min((at for at, _ in self._coming), default=math.inf)
        # Who waits for a moment has always waited a little longer.
        self.time = min(first, self.time + timeout + 1e-6)
        due = [reply for at, reply in self._coming if at <= self.time]
        self._coming = [each for each in self._coming if each[0] > self.time]
        return [*due]


class Run:
    """A run of two workers, FedAVG and a deadline of 1.5 times the slowest update time."""

    def __init__(
        self,
        fleet: Timetable,
        rounds: int,
        judging: float = 0.0,
        connected: frozenset[int] = frozenset({0, 1}),
        late_updates: str = "count",
    ) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        """When each of them was."""
        self.checkpoints: list[Tree] = []
        self.strategy = FedAVG(
            Job(UNITS, dict(MODEL.state_dict()), 2, rounds, Recipe(), 1),
            SynchronousSettings(deadline=1.5, late_updates=late_updates),
        )

        def judge(*_: Any) -> float:
            fleet.time += judging
            return 0.5

        def hear(event: Event) -> None:
            self.events.append(event)
            self.times.append(round(fleet.time - 100.0, 3))

        self._network = Network(
            self.strategy,
            2,
            UNITS,
            PLAIN,
            cast(Fleet, fleet),
            RunInvitation(
                "run", "print", {}, Inputs((1, 8, 8), "uint8", None, None, ("0", "1")), {}
            ),
            judge=judge,
            listener=hear,
            patience=3600.0,
            connected=set(connected),
        )

    def when(self, kind: type[Event], worker: int) -> list[float]:
        """The moments of a worker's events of a kind."""
        both = zip(self.events, self.times, strict=True)
        return [
            at for e, at in both if isinstance(e, kind) and getattr(e, "worker", None) == worker
        ]

    def go(self, resume: Tree | None = None) -> list[RoundRecord]:
        self._network.run(self.checkpoints.append, resume)
        return [each.record for each in self.events if isinstance(each, RoundFinished)]


def workers(record: RoundRecord) -> list[int]:
    return [each.worker for each in record.workers]


def test_what_comes_at_the_moment_at_which_the_run_ends_changes_nothing() -> None:
    """The deadline of the last round passes with no answer, then both come at once: the first
    closes the round and with it the run."""
    run = Run(Timetable(lambda task: 1.0 if task.round == 1 else 2.0), rounds=2)
    records = run.go()
    assert [(each.round, workers(each)) for each in records] == [(1, [0, 1]), (2, [0])]
    assert len(run.checkpoints) == 2
    delivered = run.strategy.model()["3.bias"] - MODEL.state_dict()["3.bias"]
    torch.testing.assert_close(delivered, torch.full((10,), 1.5 + 1.0))


def test_a_run_that_goes_on_has_as_many_seconds_left_as_it_had() -> None:
    """Judging takes half a second of the one and a half that the second round has."""
    hanging: Seconds = lambda task: math.inf if (task.worker, task.round) == (1, 2) else 1.0  # noqa: E731
    first = Run(Timetable(lambda _: 1.0), rounds=2, judging=0.5)
    first.go()
    second = Run(Timetable(hanging), rounds=2)
    (record,) = second.go(first.checkpoints[0])
    assert (record.round, workers(record), record.missing) == (2, [0], (1,))
    assert record.virtual_time_s == pytest.approx(1.0 + 0.5 + 1.0)
    assert not any(isinstance(each, WorkerLost) for each in second.events)


def test_a_run_that_goes_on_holds_workers_to_the_samples_they_had_before() -> None:
    first = Run(Timetable(lambda _: 1.0), rounds=2)
    first.go()
    more = Timetable(lambda _: 1.0, samples=lambda task: 5 + 100 * task.worker)
    second = Run(more, rounds=2)
    (record,) = second.go(first.checkpoints[0])
    assert workers(record) == [0]
    (warned,) = [each.message for each in second.events if isinstance(each, Warned)]
    assert "worker 1 has 105 samples, but it had 5 when it began" in warned


@pytest.mark.parametrize(("late_updates", "used"), [("drop", 1), ("count", 2)])
def test_a_worker_hears_which_of_its_updates_was_used_last(late_updates: str, used: int) -> None:
    fleet = Timetable(lambda task: 2.0 if (task.worker, task.round) == (1, 2) else 1.0)
    run = Run(fleet, rounds=5, late_updates=late_updates)
    run.go()
    of_worker_1 = [(round_, last) for worker, round_, last in fleet.used if worker == 1]
    assert of_worker_1[:3] == [(1, 0), (2, 1), (of_worker_1[2][0], used)]
    assert all(last == round_ - 1 for worker, round_, last in fleet.used if worker == 0)


def test_an_update_that_was_refused_or_given_up_was_not_used() -> None:
    fleet = Timetable(
        lambda task: 4000.0 if (task.worker, task.round) == (0, 2) else 1.0, samples=useless(1, 1)
    )
    run = Run(fleet, rounds=60)
    run.go()
    refused = [(round_, last) for worker, round_, last in fleet.used if worker == 1]
    assert refused[0] == (1, 0)
    assert refused[1][0] > 1
    assert refused[1][1] == 0


def test_a_run_that_goes_on_still_knows_which_updates_were_used() -> None:
    first = Run(Timetable(lambda _: 1.0), rounds=3)
    first.go()
    fleet = Timetable(lambda _: 1.0)
    Run(fleet, rounds=3).go(first.checkpoints[1])
    assert fleet.used == [(0, 3, 2), (1, 3, 2)]


def useless(worker: int, times: int) -> Callable[[Task], int]:
    """A number of samples that cannot be, in a worker's first answers."""
    left = iter(range(times))
    return lambda task: 0 if task.worker == worker and next(left, None) is not None else 5


def test_a_worker_that_fails_is_asked_again_after_a_pause_that_grows() -> None:
    run = Run(Timetable(lambda _: 1.0, samples=useless(1, 2)), rounds=60)
    records = run.go()
    assert run.when(WorkerLost, 1) == [1, 7]
    assert run.when(WorkerJoined, 1) == [0, 6, 27]
    assert workers(records[-1]) == [0, 1]


def test_a_worker_that_is_out_gets_tasks_again_when_it_was_restarted() -> None:
    fleet = Timetable(lambda _: 1.0, samples=useless(1, 3))
    fleet.comes(1, at=140.0)
    run = Run(fleet, rounds=60)
    records = run.go()
    assert run.when(WorkerLost, 1) == [1, 7, 28]
    assert run.when(WorkerJoined, 1) == [0, 6, 27, 40]
    assert workers(records[-1]) == [0, 1]


def test_a_resumed_server_asks_everybody_again() -> None:
    first = Run(Timetable(lambda _: 1.0, samples=useless(1, 3)), rounds=60)
    first.go()
    assert len(first.when(WorkerLost, 1)) == 3
    second = Run(Timetable(lambda _: 1.0), rounds=60)
    records = second.go(first.checkpoints[50])
    assert workers(records[-1]) == [0, 1]


def test_a_server_names_the_workers_it_waits_for_at_the_start() -> None:
    fleet = Timetable(lambda _: 1.0)
    fleet.comes(1, at=100.0 + 300.0)
    run = Run(fleet, rounds=1, connected=frozenset({0}))
    run.go()
    both = zip(run.events, run.times, strict=True)
    said = [(round(at), each.message) for each, at in both if isinstance(each, Warned)]
    assert said == [(at, "Still waiting for worker 1.") for at in (30, 90, 210)]


def test_a_server_names_the_workers_it_waits_for_when_all_are_lost() -> None:
    """Here neither answers within the hour that the server gives them; then both are restarted."""
    hanging = iter(range(2))
    fleet = Timetable(lambda _: math.inf if next(hanging, None) is not None else 1.0)
    for worker in (0, 1):
        fleet.comes(worker, at=100.0 + 3600.0 + 100.0)
    run = Run(fleet, rounds=1)
    run.go()
    both = zip(run.events, run.times, strict=True)
    said = [(round(at), each.message) for each, at in both if isinstance(each, Warned)]
    assert said == [(at, "Still waiting for workers 0 and 1.") for at in (3630, 3690)]
