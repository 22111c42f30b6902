"""A server that waits names those it waits for, and does not fill its log with that."""

from __future__ import annotations

import pytest

from adaptcl.engines.network.server.waiting import Reminder, going_on_without, longest_wait


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
        if reminder.about({2, 3}):
            spoke.append(second)
    assert spoke == [30, 90, 210, 450, 930, 1890, 3810, 7410, 11010]


def test_every_wait_begins_anew() -> None:
    clock = Clock()
    reminder = Reminder(clock)
    reminder.about({1})
    clock.now = 30
    assert reminder.about({1})
    assert not reminder.about({1})
    reminder.about(set())
    reminder.about({0})
    assert reminder.due_in() == 30
    clock.now = 60
    assert reminder.about({0})


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ({3}, "worker 3"),
        ({3, 2}, "workers 2 and 3"),
        ({4, 0, 7}, "workers 0, 4 and 7"),
        (set(range(100)), "workers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others"),
    ],
)
def test_workers_are_named_by_their_numbers(workers: set[int], words: str) -> None:
    clock = Clock()
    reminder = Reminder(clock)
    reminder.about(workers)
    clock.now = 31
    assert reminder.about(workers) == f"Still waiting for {words}."


def test_nobody_is_waited_for_longer_than_for_a_task() -> None:
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 2.0]) == 30
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 200.0]) == 400
    assert longest_wait({1, 2}, connected={1}, patience=3600, update_times=[0.0]) == 3600
    assert longest_wait({2}, connected=set(), patience=10, update_times=[100.0]) == 10


def test_those_left_out_are_named() -> None:
    assert "workers 1 and 2, which have not come; they are taken" in going_on_without({2, 1})
