"""How the server reminds of those it waits for, and what it holds against a worker for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import storage as snapshot
from adaptcl.engines.network.server.patience import (
    STRIKES,
    OtherDataError,
    Reliability,
    Reminder,
    going_on_without,
    longest_wait,
)
from adaptcl.errors import AdaptCLError
from adaptcl.training import Update


class Clock:
    """One that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_speaks_often_at_first_and_then_ever_more_rarely() -> None:
    clock = Clock()
    reminder = Reminder(clock)
    spoke = []
    for second in range(4 * 3600):
        clock.now = second
        if reminder.is_due({2, 3}):
            spoke.append(second)
    assert spoke == [30, 90, 210, 450, 930, 1890, 3810, 7410, 11010]


def test_every_wait_begins_anew() -> None:
    clock = Clock()
    reminder = Reminder(clock)
    reminder.is_due({1})
    clock.now = 30
    assert reminder.is_due({1})
    assert not reminder.is_due({1})
    reminder.is_due(set())
    reminder.is_due({0})
    assert reminder.due_in() == 30
    clock.now = 60
    assert reminder.is_due({0})


def test_nobody_is_waited_for_longer_than_for_a_task() -> None:
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 2.0]) == 30
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 200.0]) == 400
    assert longest_wait({1, 2}, connected={1}, patience=3600, update_times=[0.0]) == 3600
    assert longest_wait({2}, connected=set(), patience=10, update_times=[100.0]) == 10


def test_those_left_out_are_named() -> None:
    assert "workers 1 and 2, which have not come; they are taken" in going_on_without({2, 1})


def an_update(worker: int, samples: int) -> Update:
    return Update(worker, 1, {}, torch.ones(1, dtype=torch.bool), samples, 0.5)


def test_the_number_of_samples_stays_that_of_the_first_answer_that_was_used() -> None:
    reliability = Reliability(2)
    reliability.check_samples(an_update(0, 7))
    reliability.check_samples(an_update(0, 9))
    reliability.succeeded(an_update(0, 9))
    reliability.check_samples(an_update(0, 9))
    reliability.check_samples(an_update(1, 10))
    with pytest.raises(
        OtherDataError, match=r"worker 0 has 10 samples, but it had 9 when it began"
    ):
        reliability.check_samples(an_update(0, 10))


def test_only_useless_answers_in_a_row_count() -> None:
    reliability = Reliability(2)
    for _ in range(STRIKES - 1):
        reliability.failed(0, "it is noise.")
    reliability.succeeded(an_update(0, 9))
    for _ in range(STRIKES - 1):
        reliability.failed(0, "it is noise.")
    assert not reliability.is_excluded(0)
    reliability.failed(0, "it is worse.")
    assert reliability.is_excluded(0)
    assert not reliability.is_excluded(1)


def test_a_worker_that_is_out_is_told_why_and_what_its_owner_can_do() -> None:
    reliability = Reliability(1)
    reliability.failed(0, "it is noise.")
    assert reliability.dismissal(0) == "it is noise."
    for _ in range(STRIKES - 1):
        reliability.failed(0, "it is worse.")
    assert reliability.dismissal(0) == (
        "it is worse. It gets no more tasks after 3 such answers in a row; start it again when "
        "that is fixed."
    )


def test_a_worker_that_was_started_again_begins_anew() -> None:
    reliability = Reliability(2)
    for worker in (0, 1):
        for _ in range(STRIKES):
            reliability.failed(worker, "it is noise.")
    reliability.restarted(0)
    assert (reliability.is_excluded(0), reliability.is_excluded(1)) == (False, True)
    reliability.failed(0, "it is noise.")
    assert not reliability.is_excluded(0)


def test_between_the_tries_of_a_failing_worker_there_is_ever_more_time_but_no_eternity() -> None:
    reliability = Reliability(1)
    pauses = []
    for _ in range(9):
        reliability.failed(0, "its disk is full.")
        pauses.append(reliability.pause(0))
    assert pauses[:4] == [5, 20, 60, 60]
    assert set(pauses[4:]) == {60}


def test_as_long_as_one_worker_is_left_there_is_somebody_to_wait_for() -> None:
    reliability = Reliability(2)
    for _ in range(STRIKES):
        reliability.failed(0, "it is noise.")
    reliability.refuse_if_all_are_excluded()
    for _ in range(STRIKES):
        reliability.failed(1, "it has diverged.")
    with pytest.raises(AdaptCLError, match=r"No worker is left: .* it has diverged\."):
        reliability.refuse_if_all_are_excluded()


def test_what_a_worker_has_is_remembered_by_a_checkpoint_and_its_failures_are_not(
    tmp_path: Path,
) -> None:
    before, after = Reliability(2), Reliability(2)
    before.succeeded(an_update(1, 9))
    for _ in range(STRIKES):
        before.failed(0, "it is noise.")
    snapshot.save(tmp_path / "file", before.snapshot())
    after.restore(snapshot.load(tmp_path / "file"))
    assert not after.is_excluded(0)
    after.check_samples(an_update(1, 9))
    with pytest.raises(OtherDataError):
        after.check_samples(an_update(1, 8))
