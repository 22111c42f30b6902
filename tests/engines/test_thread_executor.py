from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptcl.engines.thread_executor import ExpectedUpdate, ThreadExecutor, Trained
from adaptcl.training import Arrival, Timing, Update
from adaptcl.training.worker import WorkerMemory


def trained_in(update_time: float) -> Trained:
    update = Update(0, 1, {}, torch.ones(0, dtype=torch.bool), 1, loss=0.0)
    return Trained(Arrival(update, Timing(0.0, update_time, 0.0)), WorkerMemory())


@pytest.fixture
def open_trainings() -> Iterator[Callable[[int], ThreadExecutor]]:
    opened: list[ThreadExecutor] = []

    def make(threads: int) -> ThreadExecutor:
        opened.append(ThreadExecutor(threads, 1))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def arrivals(trainings: ThreadExecutor) -> list[tuple[float, int]]:
    found = []
    while (expected := trainings.first()) is not None:
        trainings.take(expected)
        found.append((expected.time, expected.worker))
    return found


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()), max_size=12),
    st.integers(1, 3),
)
def test_updates_arrive_in_order_of_time_then_worker_whatever_is_known_before(
    drawn: list[tuple[int, int, bool]], threads: int
) -> None:
    trainings: ThreadExecutor = ThreadExecutor(threads, 1)
    expected = []
    for worker, (time_, slack, known) in enumerate(drawn):
        earliest = float(time_) if known else float(max(0, time_ - slack))
        trained = trained_in(float(time_))
        trainings.add(worker, 0.0, lambda t=trained: t, earliest=earliest, is_known=known)  # type: ignore[misc]
        expected.append((float(time_), worker))
    assert arrivals(trainings) == sorted(expected)
    trainings.close()


def test_nothing_arrives_before_the_horizon_is_reached(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    trainings = open_trainings(1)
    trainings.add(0, 2.0, lambda: trained_in(5.0), earliest=3.0, is_known=False)
    trainings.add(1, 0.0, lambda: trained_in(9.0), earliest=9.0, is_known=True)
    assert trainings.first(6.9) is None
    assert trainings.first(7.0) == ExpectedUpdate(7.0, True, 0, 1)


def test_of_many_trainings_only_a_few_run_ahead_of_the_clock(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    trainings, begun = open_trainings(2), []

    def work(worker: int) -> Trained:
        begun.append(worker)
        return trained_in(float(100 - worker))

    for worker in range(100):
        due = float(100 - worker)
        trainings.add(worker, 0.0, lambda w=worker: work(w), earliest=due, is_known=True)  # type: ignore[misc]
    for number in range(100):
        expected = trainings.first()
        assert expected is not None
        assert expected.worker == 99 - number
        trainings.take(expected)
        assert len(begun) <= number + 6
    assert sorted(begun) == list(range(100))


def test_what_is_due_first_begins_first_though_it_was_added_last(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    trainings, begun = open_trainings(1), []
    for worker, due in enumerate((5.0, 3.0, 4.0, 1.0, 2.0)):

        def work(due: float = due) -> Trained:
            begun.append(due)
            return trained_in(due)

        trainings.add(worker, 0.0, work, earliest=due, is_known=True)
    arrivals(trainings)
    assert begun == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_training_that_was_dropped_never_arrives_and_leaves_its_place(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    trainings, hold = open_trainings(1), threading.Event()

    def slow() -> Trained:
        hold.wait(10)
        return trained_in(1.0)

    for worker in range(8):
        trainings.add(worker, 0.0, slow, earliest=1.0, is_known=True)
    trainings.first()
    for worker in range(7):
        trainings.drop(worker)
    trainings.drop(99)
    trainings.add(3, 0.0, lambda: trained_in(2.0), earliest=2.0, is_known=True)
    hold.set()
    assert arrivals(trainings) == [(1.0, 7), (2.0, 3)]


def test_an_error_in_a_training_comes_out_where_its_update_would(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    def fail() -> Trained:
        raise ValueError("diverged")

    trainings = open_trainings(2)
    trainings.add(0, 0.0, fail, earliest=2.0, is_known=True)
    trainings.add(1, 0.0, lambda: trained_in(1.0), earliest=1.0, is_known=True)
    first = trainings.first()
    assert first is not None
    assert trainings.take(first).update_time == 1.0
    second = trainings.first()
    assert second is not None
    with pytest.raises(ValueError, match="diverged"):
        trainings.take(second)


@pytest.mark.slow
def test_events_of_twenty_thousand_workers_take_no_time_to_speak_of(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    def took(count: int) -> float:
        trainings = open_trainings(1)
        for worker in range(count):
            trainings.add(worker, 0.0, lambda: trained_in(7.0), earliest=7.0, is_known=True)
        began = time.process_time()
        assert len(arrivals(trainings)) == count
        return time.process_time() - began

    few, many = took(2_000), took(20_000)
    # Ten times as many; looking through all of them at every event would make it a hundred.
    assert many < 40 * few


def test_trainings_begin_before_anybody_asks_for_an_update(
    open_trainings: Callable[[int], ThreadExecutor],
) -> None:
    trainings, begun = open_trainings(1), threading.Event()

    def work() -> Trained:
        begun.set()
        return trained_in(1.0)

    trainings.add(0, 0.0, work, earliest=1.0, is_known=True)
    assert not begun.is_set()
    trainings.begin()
    assert begun.wait(10)
