"""The loop with a scripted transport and a scripted strategy: nothing is trained here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch

from adaptcl.engines.loop import LastTest, Loop
from adaptcl.engines.stop_rule import StopRule, time_limit
from adaptcl.engines.transport import Arrived, Expired, Happening, Joined, Lost, Transport
from adaptcl.events import (
    Event,
    RoundFinished,
    TaskSent,
    UpdateArrived,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from adaptcl.records import RoundRecord
from adaptcl.settings import build
from adaptcl.storage import Tree
from adaptcl.strategies import Closed, Reaction, Strategy
from adaptcl.training import Arrival, Recipe, Task, Timing, Update
from adaptcl.training.objectives.evaluation import Score
from adaptcl.units import Kept, State

KEPT = torch.ones(0, dtype=torch.bool)
RECIPE = build(Recipe, {})
Turn = tuple[float, Sequence[Happening]]
"""What the transport tells when it is asked for what happens next, and the time it is then."""


def task(worker: int, round_: int = 1) -> Task:
    return Task(worker, round_, {}, KEPT, RECIPE)


def tasks(*workers: int) -> tuple[Task, ...]:
    return tuple(map(task, workers))


def arrived(worker: int, seconds: float = 1.0) -> Arrived:
    update = Update(worker, 1, {}, KEPT, 1, loss=0.0)
    return Arrived(Arrival(update, Timing(0.0, seconds, 0.0)))


def closes(round_: int, *tasks: Task, deadline: float | None = None, **more: Any) -> Reaction:
    return Reaction(tasks, Closed(round_, (), **more), deadline)


class ScriptedStrategy:
    """Answers whatever it is told with the next reaction of its script."""

    def __init__(self, log: list[str], reactions: Iterable[Reaction], rounds: int) -> None:
        self.rounds = rounds
        self._log = log
        self._reactions = iter(reactions)
        self._done = 0

    def _answer(self, call: str) -> Reaction:
        self._log.append(call)
        reaction = next(self._reactions)
        if reaction.closed is not None:
            self._done = reaction.closed.round
        return reaction

    def start(self) -> Reaction:
        return self._answer("start")

    def receive(self, arrival: Arrival) -> Reaction:
        return self._answer(f"receive {arrival.update.worker}")

    def expired(self) -> Reaction:
        return self._answer("expired")

    def lost(self, worker: int) -> Reaction:
        return self._answer(f"lost {worker}")

    def joined(self, worker: int) -> Reaction:
        return self._answer(f"joined {worker}")

    @property
    def finished(self) -> bool:
        return self._done >= self.rounds

    def model(self) -> State:
        return {}

    def sub_models(self) -> Sequence[Kept]:
        return ()

    def outstanding(self) -> Sequence[Task]:
        return tasks(5, 6)

    def snapshot(self) -> Tree:
        return {"done": self._done}

    def restore(self, tree: Tree) -> None:
        self._log.append("restore")
        self._done = tree["done"]


class ScriptedTransport(Transport):
    """Tells turn after turn of its script."""

    def __init__(
        self, log: list[str], turns: Iterable[Turn], opening: Sequence[Happening] = ()
    ) -> None:
        super().__init__()
        self.time = 0.0
        self.away: set[int] = set()
        self.deadlines: list[float] = []
        """What the loop said each time it asked for what happens next."""
        self._log = log
        self._turns = iter(turns)
        self._opening = opening

    @property
    def now(self) -> float:
        return self.time

    def open(self, resume: Tree | None) -> Iterator[Happening]:
        self._log.append("open" if resume is None else f"open from {resume['now']}")
        yield from self._opening

    def send(self, task: Task) -> None:
        self._log.append(f"send {task.worker}")

    def begin(self) -> None:
        self._log.append("begin")

    def next(self, deadline: float) -> Iterator[Happening]:
        self.deadlines.append(deadline)
        self.time, happenings = next(self._turns)
        for each in happenings:
            if isinstance(each, Lost) and not each.keeps_task:
                self.away.add(each.worker)
            elif isinstance(each, Joined):
                self.away.discard(each.worker)
            yield each

    def acknowledge(self, worker: int, *, used: bool) -> None:
        self._log.append(f"acknowledge {worker}: {'used' if used else 'dropped'}")

    def snapshot(self) -> Tree:
        return {"now": self.now}

    def close(self) -> None:
        self._log.append("close")


class Play:
    """A run by script, and all that is seen of it."""

    def __init__(
        self,
        reactions: Iterable[Reaction],
        turns: Iterable[Turn],
        *,
        rounds: int = 1,
        opening: Sequence[Happening] = (),
    ) -> None:
        self.log: list[str] = []
        self.events: list[Event] = []
        self.sent: list[TaskSent] = []
        self.saved: list[Tree] = []
        self.strategy = ScriptedStrategy(self.log, reactions, rounds)
        self.transport = ScriptedTransport(self.log, turns, opening)
        self.loop = Loop(self.strategy, self.transport, 3, self, [self.listen])

    def run(self, resume: Tree | None = None) -> Play:
        self.loop.run(self.save, resume)
        return self

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> Score | None:
        is_early = is_last and not strategy.finished
        self.log.append(f"judge {closed.round}{', the last' if is_early else ''}")
        return Score(1.0, {"accuracy": closed.round / 10})

    def listen(self, event: Event) -> None:
        if isinstance(event, TaskSent):
            self.sent.append(event)
            return
        self.events.append(event)
        self.log.append(f"tell {type(event).__name__}")

    def save(self, tree: Tree) -> None:
        self.saved.append(tree)
        self.log.append("save")

    @property
    def records(self) -> list[RoundRecord]:
        return [each.record for each in self.events if isinstance(each, RoundFinished)]


# The order of things -----------------------------------------------------------------------------


def test_every_task_is_told_of_with_the_time_it_was_sent() -> None:
    play = Play(
        [Reaction(tasks(0, 1)), closes(1, *tasks(2)), closes(2)],
        [(1.0, [arrived(0)]), (2.0, [arrived(2)])],
        rounds=2,
    ).run()
    assert [(each.worker, each.virtual_time_s) for each in play.sent] == [(0, 0), (1, 0), (2, 1)]


def test_a_run_goes_through_its_steps_in_order() -> None:
    play = Play(
        [Reaction(tasks(0, 1)), Reaction(tasks(0)), closes(1, *tasks(1, 2)), closes(2)],
        [(1.0, [arrived(0)]), (2.0, [arrived(1)]), (3.0, [arrived(2)])],
        rounds=2,
    ).run()
    assert play.log == [
        *("open", "start", "send 0", "send 1", "begin"),
        *("tell UpdateArrived", "receive 0", "acknowledge 0: used", "send 0", "begin"),
        # The next round's tasks are out before the last round is judged.
        *(
            "tell UpdateArrived",
            "receive 1",
            "acknowledge 1: used",
            "send 1",
            "send 2",
            "begin",
        ),
        *("judge 1", "tell RoundFinished", "save"),
        *("tell UpdateArrived", "receive 2", "acknowledge 2: used", "begin"),
        *("judge 2", "tell RoundFinished", "save", "close"),
    ]
    assert play.events[0] == UpdateArrived(0, 1, 1.0)
    assert [(each.worker, each.virtual_time_s) for each in play.sent] == [
        *((0, 0.0), (1, 0.0), (0, 1.0), (1, 2.0), (2, 2.0))
    ]


def test_an_update_that_the_strategy_drops_is_acknowledged_as_dropped() -> None:
    dropping = [Reaction(tasks(0)), Reaction(dropped=True), closes(1)]
    play = Play(dropping, [(1.0, [arrived(0)]), (2.0, [arrived(1)])]).run()
    assert [line for line in play.log if line.startswith("acknowledge")] == [
        "acknowledge 0: dropped",
        "acknowledge 1: used",
    ]


def test_what_happens_after_the_last_round_reaches_nobody() -> None:
    play = Play([Reaction(tasks(0, 1)), closes(1)], [(1.0, [arrived(0), arrived(1)])]).run()
    assert play.log.count("tell UpdateArrived") == 1
    assert "receive 1" not in play.log
    assert len(play.transport.deadlines) == 1


def test_a_strategy_may_close_rounds_from_its_start_on() -> None:
    play = Play([closes(1)], []).run()
    assert play.log == ["open", "start", "begin", "judge 1", "tell RoundFinished", "save", "close"]


# Workers that come and go ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("happening", "event", "asked"),
    [
        (Lost(1, "unplugged"), WorkerLost(1, 1, "unplugged"), "lost 1"),
        (Lost(1, "unplugged", keeps_task=True), WorkerLost(1, 1, "unplugged"), None),
        (Joined(1), WorkerJoined(1, 1), "joined 1"),
        (Joined(1, keeps_task=True), WorkerJoined(1, 1), None),
        (Warned("It rains."), Warned("It rains."), None),
        (Expired(), None, "expired"),
    ],
)
def test_all_are_told_what_happens_and_the_strategy_what_concerns_it(
    happening: Happening, event: Event | None, asked: str | None
) -> None:
    reactions = [Reaction(tasks(0)), *([Reaction(tasks(2))] if asked else []), closes(1)]
    play = Play(reactions, [(1.0, [happening]), (2.0, [arrived(0)])]).run()
    assert play.events[:-2] == ([event] if event else [])
    calls = [line for line in play.log if line.split()[0] in ("lost", "joined", "expired")]
    assert calls == ([asked] if asked else [])
    assert ("send 2" in play.log) == (asked is not None)


def test_who_comes_before_the_first_round_is_told_of_and_no_business_of_the_strategy() -> None:
    play = Play([closes(1)], [], opening=[Joined(0), Warned("Slow disk.")]).run()
    assert play.events[:2] == [WorkerJoined(0, 1), Warned("Slow disk.")]
    assert "joined 0" not in play.log


def test_events_name_the_round_under_way() -> None:
    turns: list[Turn] = [(1.0, [arrived(0)]), (2.0, [Lost(1, "gone"), Joined(1), arrived(0)])]
    reactions = [Reaction(tasks(0, 1)), closes(1), Reaction(), Reaction(), closes(2)]
    play = Play(reactions, turns, rounds=2).run()
    assert WorkerLost(1, 2, "gone") in play.events
    assert WorkerJoined(1, 2) in play.events


# Deadlines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reactions", "deadlines"),
    [
        ([Reaction(), Reaction()], [math.inf, math.inf, math.inf]),
        ([Reaction(deadline=3.0), Reaction()], [math.inf, 13.0, 13.0]),
        ([Reaction(deadline=3.0), Reaction(deadline=4.0)], [math.inf, 13.0, 24.0]),
        ([Reaction(deadline=3.0), closes(1)], [math.inf, 13.0, math.inf]),
        ([Reaction(deadline=3.0), closes(1, deadline=4.0)], [math.inf, 13.0, 24.0]),
    ],
    ids=["none", "it stays", "a later one", "its round closes", "the next round has one"],
)
def test_a_deadline_counts_from_when_it_is_asked_for_until_it_is_replaced_or_its_round_closes(
    reactions: list[Reaction], deadlines: list[float]
) -> None:
    turns: list[Turn] = [(time, [arrived(0)]) for time in (10.0, 20.0, 30.0)]
    play = Play([Reaction(tasks(0)), *reactions, closes(2)], turns, rounds=2).run()
    assert play.transport.deadlines == deadlines


def test_a_deadline_that_has_passed_is_gone() -> None:
    turns: list[Turn] = [(5.0, [Expired()]), (6.0, [arrived(0)])]
    play = Play([Reaction(tasks(0), deadline=5.0), Reaction(), closes(1)], turns).run()
    assert play.transport.deadlines == [5.0, math.inf]


# The record of a round ---------------------------------------------------------------------------


def test_a_record_holds_what_the_strategy_the_transport_and_the_evaluator_know() -> None:
    closed = closes(1, similarity=0.5, missing=(2,), warnings=("one", "two"))
    play = Play([Reaction(tasks(0)), closed], [(12.5, [arrived(0)])])
    play.transport.count_task(30)
    play.transport.count_answer(20)
    play.run()
    assert play.events[1:3] == [Warned("one"), Warned("two")]
    (record,) = play.records
    assert (record.round, record.virtual_time_s, record.accuracy) == (1, 12.5, 0.1)
    assert (record.bytes_sent, record.bytes_received) == (30, 20)
    assert (record.similarity, record.missing, record.workers) == (0.5, (2,), ())


def test_each_round_has_the_traffic_since_the_one_before() -> None:
    transport = ScriptedTransport([], [])
    transport.count_task(5)
    transport.count_task(2)
    transport.count_answer(3)
    assert transport.close_round() == (7, 3)
    transport.count_answer(4)
    assert transport.close_round() == (0, 4)
    assert transport.close_round() == (0, 0)


THREE_TIMES = [arrived(0, 4.0), arrived(1, 2.0), arrived(2, 1.0)]


@pytest.mark.parametrize(
    ("happenings", "participants", "expected"),
    [
        (THREE_TIMES, (), 1 - (1 / 2 + 1 / 4) / 2),
        ([*THREE_TIMES, Lost(1, "gone")], (), 0.75),
        ([*THREE_TIMES, Lost(1, "gone", keeps_task=True)], (), 1 - (1 / 2 + 1 / 4) / 2),
        ([*THREE_TIMES, Lost(1, "gone"), Joined(1)], (), None),
        ([THREE_TIMES[0], THREE_TIMES[2]], (), None),
        ([THREE_TIMES[0], THREE_TIMES[2]], (0, 2), 0.75),
    ],
    ids=["all", "one is lost", "one that keeps its task", "back but without a time",
         "one without a time", "only who was asked"],
)  # fmt: skip
def test_heterogeneity_is_that_of_the_workers_asked_and_there(
    happenings: list[Happening], participants: tuple[int, ...], expected: float | None
) -> None:
    silent = [Reaction()] * sum(not getattr(each, "keeps_task", False) for each in happenings)
    last = closes(1, participants=participants)
    turns: list[Turn] = [(1.0, happenings), (2.0, [Expired()])]
    play = Play([Reaction(tasks(0, 1, 2)), *silent, last], turns).run()
    assert play.records[0].heterogeneity == expected


# Going on ----------------------------------------------------------------------------------------

SCRIPT = [
    Reaction(tasks(0, 1, 2)), Reaction(deadline=9.0), closes(1, deadline=7.0), Reaction(),
    Reaction(), closes(2), closes(3),
]  # fmt: skip
TURNS: list[Turn] = [
    (1.0, [arrived(2, 1.0), arrived(1, 2.0)]), (4.0, [arrived(0, 4.0)]), (9.0, [Joined(1)]),
    (11.0, [Expired()]), (12.0, [arrived(0, 3.0)]),
]  # fmt: skip


def test_a_snapshot_is_saved_after_every_round() -> None:
    whole = Play(SCRIPT, TURNS, rounds=3).run()
    assert [each["rounds_closed"] for each in whole.saved] == [1, 2, 3]
    assert whole.log.count("save") == 3


@pytest.mark.parametrize("rounds_done", [1, 2])
def test_a_run_goes_on_from_any_snapshot_to_the_same_records(rounds_done: int) -> None:
    whole = Play(SCRIPT, TURNS, rounds=3).run()
    reactions, turns = {1: (SCRIPT[3:], TURNS[1:]), 2: (SCRIPT[6:], TURNS[4:])}[rounds_done]
    again = Play(reactions, turns, rounds=3).run(whole.saved[rounds_done - 1])
    assert again.records == whole.records[rounds_done:]
    assert again.transport.deadlines == whole.transport.deadlines[-len(turns) :]
    assert again.saved == whole.saved[rounds_done:]


def test_a_run_that_goes_on_sends_the_tasks_that_were_under_way_instead_of_the_first() -> None:
    saved = Play(SCRIPT, TURNS, rounds=3).run().saved[1]
    again = Play([closes(3)], [TURNS[-1]], rounds=3).run(saved)
    assert again.log[:4] == ["restore", "open from 11.0", "send 5", "send 6"]
    assert "start" not in again.log


def test_a_run_whose_rounds_are_all_done_opens_no_transport() -> None:
    saved = Play(SCRIPT, TURNS, rounds=3).run().saved[2]
    assert Play([], [], rounds=3).run(saved).log == ["restore"]


def test_without_a_place_to_save_nothing_is_saved() -> None:
    play = Play([closes(1)], [])
    play.loop.run()
    assert play.saved == []


# The end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["open", "send", "begin", "next", "acknowledge", "snapshot"])
def test_the_transport_is_closed_whatever_fails(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    play = Play([Reaction(tasks(0)), closes(1)], [(1.0, [arrived(0)])])
    monkeypatch.setattr(play.transport, broken, fail)
    with pytest.raises(KeyboardInterrupt):
        play.run()
    assert play.log.count("close") == 1


def test_an_error_of_a_listener_ends_the_run_before_the_round_is_saved() -> None:
    class StoppedError(Exception):
        pass

    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished):
            raise StoppedError

    play = Play([Reaction(tasks(0)), closes(1)], [(1.0, [arrived(0)])])
    loop = Loop(play.strategy, play.transport, 3, play, [play.listen, stop])
    with pytest.raises(StoppedError):
        loop.run(play.save)
    assert play.saved == []
    assert play.log[-2:] == ["tell RoundFinished", "close"]


def test_a_stop_rule_ends_the_run_after_a_round_as_its_strategy_would() -> None:
    reactions = [Reaction(tasks(0)), closes(1, *tasks(1)), closes(2, *tasks(0, 2))]
    turns = [(1.0, [arrived(0)]), (2.0, [arrived(1), arrived(2)])]
    play = Play(reactions, turns, rounds=9)
    rule = StopRule({"max_virtual_time": time_limit(2.0)})
    Loop(play.strategy, play.transport, 3, play, [play.listen], rule).run(play.save)
    assert play.log[-5:] == ["begin", "judge 2, the last", "tell RoundFinished", "save", "close"]
    assert [record.round for record in play.records] == [1, 2]
    assert rule.stopped_by == "max_virtual_time"
    # Resumed, it is over: only its results are left to be written.
    again = Play([], [], rounds=9)
    Loop(again.strategy, again.transport, 3, again, [again.listen], rule).run(
        again.save, play.saved[-1]
    )
    assert again.log == ["restore"]


# The last test -----------------------------------------------------------------------------------


def play_with_last_test(turns: Iterable[Turn], reactions: Iterable[Reaction]) -> tuple[Play, Loop]:
    play = Play(reactions, turns)

    def last_test(strategy: Strategy) -> LastTest:
        return LastTest(tasks(0, 1, 2), lambda update: play.log.append(f"test of {update.worker}"))

    loop = Loop(play.strategy, play.transport, 3, play, [play.listen], last_test=last_test)
    return play, loop


def test_when_a_run_is_finished_all_workers_that_are_there_may_test_its_model() -> None:
    turns: list[Turn] = [
        (1.0, [Lost(1, "gone")]), (2.0, [arrived(0)]), (3.0, [arrived(2), Joined(1)]),
        (4.0, [Warned("It rains."), arrived(0)]),
    ]  # fmt: skip
    first = [Reaction(tasks(0, 1, 2)), Reaction(deadline=9.0), closes(1, deadline=9.0)]
    play, loop = play_with_last_test(turns, first)
    loop.run(play.save)
    assert play.log[play.log.index("save") + 1 :] == [
        *("send 0", "send 2", "begin"),
        *("tell UpdateArrived", "test of 2", "acknowledge 2: dropped", "begin"),
        *("tell WorkerJoined", "begin", "tell Warned", "begin"),
        *("tell UpdateArrived", "test of 0", "acknowledge 0: dropped", "begin", "close"),
    ]
    assert play.transport.deadlines[-2:] == [math.inf, math.inf]


def test_a_last_test_does_not_wait_for_who_is_lost() -> None:
    turns: list[Turn] = [
        (1.0, [arrived(0)]), (2.0, [arrived(0), Lost(1, "late", keeps_task=True)]),
        (3.0, [Lost(1, "gone"), arrived(2)]),
    ]  # fmt: skip
    play, loop = play_with_last_test(turns, [Reaction(tasks(0, 1, 2)), closes(1)])
    loop.run()
    assert [line for line in play.log if line.startswith("test")] == ["test of 0", "test of 2"]
