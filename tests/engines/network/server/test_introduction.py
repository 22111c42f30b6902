"""What workers have told is said before the run, so that a slip in one's data is seen in time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.data import DataSet, Samples
from adaptcl.engines.network.agreement import LocalStatistics, agreed, difference
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import Invitation, Question, Reply
from adaptcl.engines.network.messages import INVITE, WAIT, waiting_in_words
from adaptcl.engines.network.server.attendance import Quorum
from adaptcl.engines.network.server.fleet import Came, Left, Replied
from adaptcl.engines.network.server.introduction import (
    agree,
    agreement_in_words,
    holders_of_classes,
    look_alikes,
)
from adaptcl.errors import AdaptCLError


def told(*classes: str) -> LocalStatistics:
    samples = Samples(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
    return LocalStatistics.of(DataSet("", samples, samples, classes))


def test_a_class_that_only_one_worker_has_is_named() -> None:
    found = {0: told("icu", "ward"), 1: told("ICU", "ward"), 2: told("icu", "ward")}
    holders = holders_of_classes(found)
    assert agreement_in_words(agreed(found), holders, 3) == (
        "the workers' inputs are float32 [6]; 3 classes: ICU, icu, ward; only worker 1 has ICU"
    )
    (warning,) = look_alikes(holders)
    assert warning.startswith(
        "The classes 'ICU' (worker 1) and 'icu' (workers 0 and 2) have almost the same name, but"
    )


def test_names_with_spaces_around_look_alike_and_many_classes_are_cut_short() -> None:
    found = {0: told(*map(str, range(12)))}
    said = agreement_in_words(agreed(found), holders_of_classes(found), 1)
    assert said.endswith("; 12 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …")
    assert not list(look_alikes(holders_of_classes({0: told("a", "b"), 1: told("a")})))
    assert list(look_alikes(holders_of_classes({0: told("a"), 1: told("a ")})))


QUESTION = Question("classification (by accuracy)")


class FleetOf:
    """A fleet in which all happens that a test says; it notes who is dismissed, and why."""

    def __init__(self, *events: object) -> None:
        self._events = list(events)
        self._now = 0.0
        self.connected: set[int] = set()
        self.dismissed: list[tuple[int, str]] = []
        self.told: list[str] = []  # what workers hear of the others

    def now(self) -> float:
        return self._now

    def wait(self, timeout: float) -> list[object]:
        if not self._events:
            self._now += timeout
            return []
        event = self._events.pop(0)
        if isinstance(event, Came):
            self.connected.add(event.worker)
        elif isinstance(event, Left):
            self.connected.discard(event.worker)
        return [event]

    def send(self, worker: int, kind: str, content: bytes) -> str:
        if kind == INVITE:
            with pytest.raises(AdaptCLError) as refusal:
                Invitation.read(Frame.from_bytes(content))
            self.dismissed.append((worker, str(refusal.value)))
        elif kind == WAIT:
            self.told.append(waiting_in_words(Frame.from_bytes(content)))
        return f"question to {worker}"


def answer(worker: int, columns: int) -> Replied:
    samples = Samples(torch.zeros(4, columns), torch.zeros(4, dtype=torch.int64))
    content = LocalStatistics.of(DataSet("", samples, samples, ("a",))).frame().to_bytes()
    return Replied(worker, f"question to {worker}", content, 0.0, 0.0)


def test_a_worker_that_leaves_before_all_have_told_no_longer_counts() -> None:
    fleet = FleetOf(
        *(Came(0), answer(0, 5), Left(0, said_goodbye=True), Came(1), answer(1, 6)),
        *(Came(0), answer(0, 6)),
    )
    said: list[str] = []
    known = agree(fleet, 2, QUESTION, Quorum(2), said.append)  # type: ignore[arg-type]
    assert said[0] == "worker 0 lost: it has left; waiting for workers 0 and 1"
    assert known.shape == (6,)
    assert not fleet.dismissed
    assert fleet.told == [f"waiting, as worker {each}, for the other one" for each in (0, 1)]


def test_a_refusal_is_heard_though_the_worker_has_left_and_an_answer_then_does_not_count() -> None:
    refusal = Reply("it does not allow the model.").frame().to_bytes()
    fleet = FleetOf(
        *(Came(0), Left(0), Replied(0, "question to 0", refusal, 0.0, 0.0)),
        *(Came(0), Left(0), answer(0, 5), Came(0), answer(0, 6)),
    )
    said: list[str] = []
    known = agree(fleet, 1, QUESTION, Quorum(1), said.append)  # type: ignore[arg-type]
    assert said[0] == "Worker 0 cannot take part: it does not allow the model."
    assert known.shape == (6,)


def test_enough_workers_need_not_wait_for_the_others_to_tell() -> None:
    """Of two forms that are as frequent then, that of the worker with the lowest number counts."""
    four = [each for w in (0, 1, 2) for each in (Came(w), answer(w, 5 + w % 2))]
    fleet = FleetOf(*four)
    said: list[str] = []
    known = agree(fleet, 5, QUESTION, Quorum(2, 600.0), said.append)  # type: ignore[arg-type]
    assert known.shape == (5,)
    assert 600 <= fleet.now() < 660
    assert said[-3].startswith("Worker 1 cannot take part: its inputs are float32 [6]")
    assert said[-2] == (
        "the model is built without the data of workers 1, 3 and 4; what comes later has to fit it"
    )


def test_a_worker_with_other_data_is_told_so_and_waited_for_until_it_comes_with_the_right() -> None:
    joined = [
        each for worker in range(3) for each in (Came(worker), answer(worker, 5 + worker % 2))
    ]
    fleet = FleetOf(*joined, Left(1), Came(1), answer(1, 5))
    said: list[str] = []
    known = agree(fleet, 3, QUESTION, Quorum(3), said.append)  # type: ignore[arg-type]
    assert known.shape == (5,)
    why = "its inputs are float32 [6], those of workers 0 and 2 float32 [5]; all must be equal."
    differ = "its inputs are float32 [6], those of worker 0 float32 [5]"
    later = "which of the two is right is judged when all are there"
    assert said[0] == f"warning: Worker 1's data differ: {differ}; {later}"
    assert f"warning: this worker's data differ from another's: {differ}; {later}" in fleet.told
    assert said[1].startswith(f"Worker 1 cannot take part: {why}")
    ((refused, sentence),) = fleet.dismissed
    assert refused == 1
    assert why in sentence


def test_a_missing_column_is_named_with_the_worker_that_has_it() -> None:
    def table(columns: str) -> LocalStatistics:
        rows = torch.zeros(4, len(columns))
        samples = Samples(rows, torch.zeros(4, dtype=torch.int64), columns={"": tuple(columns)})
        return LocalStatistics.of(DataSet("", samples, samples, ("a",)))

    found = {0: table("xyz"), 1: table("zxy"), 2: table("xy")}
    assert difference(found, 2) == "of the columns that worker 0 has, its frame lacks 'z'"
    assert difference(found, 1) == "of the columns that worker 2 has, its frame has 'z' besides"
    assert difference({0: found[0], 1: found[1]}, 1) == ""
