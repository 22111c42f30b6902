"""What a worker draws depends on its number, round and seed, not on who runs beside it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training import Recipe, Task, Update
from adaptcl.training.randomness import Draws
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, trace

Tasks = Callable[..., Task]
Same = Callable[[State, State], bool]
KNOWN = WorkerMemory(lasso_lambda=0.001)


class Dropping(nn.Module):
    """A net that draws random numbers while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(64, 24), nn.BatchNorm1d(24)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        BEFORE_DRAWING.get(threading.current_thread().name, lambda: None)()
        scores: Tensor = self.head(self.dropout(F.relu(self.norm(self.hidden(x.flatten(1))))))
        return scores


BEFORE_DRAWING: dict[str, Callable[[], object]] = {}
"""What happens in a thread of that name just before dropout draws."""


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads that take turns as often as they can, so that they meet at awkward moments."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=[Draws.TASK_GENERATOR, Draws.SHARED], ids=["task's", "shared"])
def dropping(
    digits: Samples, request: pytest.FixtureRequest
) -> tuple[list[Worker], Callable[[int], Task]]:
    """Four workers with dropout and their tasks."""
    draws: Draws = request.param
    torch.manual_seed(0)
    model = Dropping()
    units = trace(model, torch.zeros(2, 1, 8, 8))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    workers = [Worker(w, digits, model, units, 7, draws_randomness=draws) for w in range(4)]

    def task_of(worker: int) -> Task:
        return Task(worker, 1, state, units.everything(), Recipe(epochs=1, batch_size=16))

    return workers, task_of


@pytest.mark.usefixtures("impatient_threads")
def test_side_by_side_in_threads_workers_give_the_same_updates(
    same: Same, net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    workers = [Worker(w, digits, net, units, seed=7) for w in range(4)]
    check_threads(same, workers, lambda worker: task(worker=worker))


@pytest.mark.usefixtures("impatient_threads")
def test_side_by_side_in_threads_dropout_draws_the_same_numbers(
    same: Same, dropping: tuple[list[Worker], Callable[[int], Task]]
) -> None:
    check_threads(same, *dropping)


def check_threads(same: Same, workers: list[Worker], task_of: Callable[[int], Task]) -> None:
    def carry_out(number: int) -> Update:
        return workers[number % 4].carry_out(task_of(number % 4), WorkerMemory())[0]

    alone = [carry_out(number) for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(carry_out, range(16)))
    for number, update in enumerate(together):
        assert same(update.state, alone[number % 4].state)
        assert update.loss == alone[number % 4].loss


def test_a_worker_that_finishes_does_not_disturb_the_one_that_waited_for_it(
    same: Same,
    dropping: tuple[list[Worker], Callable[[int], Task]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, task_of = dropping
    alone = workers[1].carry_out(task_of(1), WorkerMemory())[0]
    found: list[Update] = []
    drawing, finished = threading.Event(), threading.Event()

    def first() -> None:
        workers[0].carry_out(task_of(0), WorkerMemory())
        finished.set()

    def second() -> None:
        drawing.wait(10)
        found.append(workers[1].carry_out(task_of(1), WorkerMemory())[0])

    def let_the_other_queue_up() -> None:
        drawing.set()
        time.sleep(0.01)

    put_back = torch.set_rng_state

    def put_back_slowly(state: Tensor) -> None:
        time.sleep(0.05)
        put_back(state)

    monkeypatch.setattr(torch, "set_rng_state", put_back_slowly)
    monkeypatch.setitem(BEFORE_DRAWING, "first", let_the_other_queue_up)
    monkeypatch.setitem(BEFORE_DRAWING, "second", lambda: finished.wait(10))
    threads = [threading.Thread(target=t, name=t.__name__) for t in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(found[0].state, alone.state)


def test_dropout_does_not_depend_on_the_global_generator_nor_disturb_it(
    same: Same, dropping: tuple[list[Worker], Callable[[int], Task]]
) -> None:
    workers, task_of = dropping
    updates = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        updates.append(workers[0].carry_out(task_of(0), WorkerMemory())[0])
        assert torch.equal(before, torch.get_rng_state())
    assert same(updates[0].state, updates[1].state)


def test_dropout_differs_from_worker_to_worker(
    same: Same, dropping: tuple[list[Worker], Callable[[int], Task]]
) -> None:
    workers, task_of = dropping
    one, other = (workers[w].carry_out(task_of(w), KNOWN)[0] for w in (0, 1))
    assert not same(one.state, other.state)
