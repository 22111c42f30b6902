"""Runs the trainings of a simulation in threads, and hands out updates in virtual order.

The order of updates follows the virtual clock and never depends on which thread is faster. Usually
the time of an update's arrival is known before it is trained. Then trainings begin in the order of
arrival, and only a few ahead of the clock: of a thousand workers, few updates are in memory. If the
time depends on the training (a pruning, a codec whose bytes depend on the values), all trainings
that could arrive next are run before the next update is known.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch

from adaptcl.training import Arrival
from adaptcl.training.worker import WorkerMemory

_AHEAD = 3  # updates in memory for each thread: one being trained, one about to be, one to be taken


@dataclass(frozen=True)
class Trained:
    """The result of a training. Only its time on the virtual clock matters here."""

    arrival: Arrival
    memory: WorkerMemory

    @property
    def update_time(self) -> float:
        """Virtual seconds from the start to the arrival."""
        return self.arrival.timing.update_time


class ExpectedUpdate(NamedTuple):
    """When an update arrives, or the earliest it could arrive. Unknown times sort first."""

    time: float
    is_known: bool
    worker: int
    number: int


@dataclass
class _Training:
    start: float
    number: int
    work: Callable[[], Trained]
    is_known: bool
    future: Future[Trained] | None = None


class ThreadExecutor:
    """Runs at most one training for each worker at a time."""

    def __init__(self, threads: int, cores_for_each: int) -> None:
        self._pool = ThreadPoolExecutor(
            threads, "worker", initializer=torch.set_num_threads, initargs=(cores_for_each,)
        )
        self._most = _AHEAD * threads
        self._under_way: dict[int, _Training] = {}
        self._next: list[ExpectedUpdate] = []
        self._to_begin: list[ExpectedUpdate] = []
        self._ahead = 0
        """Trainings with a known time of arrival that have begun and are not taken yet."""
        self._count = 0

    def add(
        self,
        worker: int,
        start: float,
        work: Callable[[], Trained],
        *,
        earliest: float,
        is_known: bool,
    ) -> None:
        """Add a worker's training. Its update arrives at `earliest` if that is known, else later.

        The training begins once all tasks of the moment are added and `begin` is called.
        """
        self._count += 1
        self._under_way[worker] = _Training(start, self._count, work, is_known)
        expected = ExpectedUpdate(earliest, is_known, worker, self._count)
        heapq.heappush(self._next, expected)
        heapq.heappush(self._to_begin, expected)

    def begin(self) -> None:
        """Start the trainings that are due first, as many as may run ahead of the clock."""
        while self._to_begin:
            training = self._current(self._to_begin[0])
            if training is not None and training.future is None:
                if training.is_known and self._ahead >= self._most:
                    return
                self._submit(training)
            heapq.heappop(self._to_begin)

    def first(self, horizon: float = math.inf) -> ExpectedUpdate | None:
        """The next update to arrive, if one arrives by the horizon."""
        self.begin()
        while self._next and self._next[0].time <= horizon:
            expected = self._next[0]
            training = self._current(expected)
            if training is None:
                heapq.heappop(self._next)
            elif expected.is_known:
                return expected
            else:
                time = training.start + self._outcome(training).update_time
                heapq.heapreplace(self._next, expected._replace(time=time, is_known=True))
        return None

    def take(self, expected: ExpectedUpdate) -> Trained:
        """The result of a training, which is over then."""
        training = self._under_way[expected.worker]
        outcome = self._outcome(training)
        assert training.start + outcome.update_time == expected.time
        self.drop(expected.worker)
        return outcome

    def drop(self, worker: int) -> None:
        """Forget a worker's training.

        A training that has begun still runs to its end, perhaps beside the worker's next one.
        """
        training = self._under_way.pop(worker, None)
        if training is None or training.future is None:
            return
        training.future.cancel()
        self._ahead -= training.is_known

    def close(self) -> None:
        """Release the threads without waiting for trainings that nobody wants any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, training: _Training) -> Future[Trained]:
        training.future = self._pool.submit(training.work)
        self._ahead += training.is_known
        return training.future

    def _outcome(self, training: _Training) -> Trained:
        return (training.future or self._submit(training)).result()

    def _current(self, expected: ExpectedUpdate) -> _Training | None:
        """The training that is expected, unless it was dropped or replaced by another."""
        training = self._under_way.get(expected.worker)
        return training if training is not None and training.number == expected.number else None
