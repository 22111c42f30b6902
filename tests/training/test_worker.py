from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.pruning import prune
from adaptcl.seeds import generator
from adaptcl.training import Pruning, Recipe, Task, Update
from adaptcl.training.batches import batches, steps
from adaptcl.training.evaluate import accuracy
from adaptcl.training.lasso import GroupLasso
from adaptcl.training.randomness import Draws
from adaptcl.training.trainer import PlainTrainer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, parameters, recut, submodel, trace

Tasks = Callable[..., Task]
KNOWN = WorkerMemory(lasso=0.001)


@pytest.fixture
def worker(net: nn.Module, units: UnitMap, digits: Samples) -> Worker:
    return Worker(0, digits, net, units, seed=7)


@pytest.fixture(scope="module")
def order(units: UnitMap) -> Tensor:
    """An importance for each of the fourteen units."""
    return torch.rand(units.count, generator=torch.Generator().manual_seed(3))


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


# Without pruning --------------------------------------------------------------------------------


def test_an_update_answers_its_task(worker: Worker, task: Tasks) -> None:
    asked = task(round=4)
    update, _ = worker.carry_out(asked, WorkerMemory())
    assert (update.worker, update.round, update.samples) == (0, 4, 80)
    assert torch.equal(update.kept, asked.kept)
    assert update.cut is None
    assert not same(update.state, dict(asked.state))


def test_the_task_and_the_model_are_not_written_to(
    worker: Worker, task: Tasks, net: nn.Module, order: Tensor
) -> None:
    asked = task(pruning=Pruning(0.3, "index", order), beta=0.5)
    before = {name: tensor.clone() for name, tensor in asked.state.items()}
    worker.carry_out(asked, WorkerMemory())
    assert same(dict(asked.state), before)
    assert same(net.state_dict(), before)


def test_the_reported_loss_is_the_mean_over_the_batches(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    asked = task(epochs=0.2)  # one batch, seen by the untrained model
    update, _ = worker.carry_out(asked, KNOWN)
    first = next(batches(80, 16, 1, generator(7, "batches", 0, 1)))
    inputs, labels = digits.batch(first)
    loss = F.cross_entropy(submodel(net, units, asked.kept).train()(inputs), labels)
    assert update.loss == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(("epochs", "expected"), [(0.5, 2), (1, 5), (2.4, 12), (0.001, 1)])
def test_fractions_of_an_epoch_are_trained(
    worker: Worker, task: Tasks, epochs: float, expected: int
) -> None:
    update, _ = worker.carry_out(task(epochs=epochs), KNOWN)
    assert int(update.state["1.num_batches_tracked"]) == expected


def test_training_lowers_the_loss_and_learns(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    memory, state, losses = WorkerMemory(), task().state, []
    for number in range(1, 9):
        update, memory = worker.carry_out(task(round=number, state=state), memory)
        state = update.state
        losses.append(update.loss)
    assert losses[-1] < 0.3 * losses[0]
    assert accuracy(submodel(net, units, units.everything(), state), digits) > 0.9


@pytest.mark.parametrize("augmentation", [False, True])
def test_the_same_task_gives_the_same_update_bit_for_bit(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks, augmentation: bool
) -> None:
    updates = [
        Worker(0, digits, net, units, seed=7).carry_out(
            task(round=2, augmentation=augmentation), WorkerMemory()
        )[0]
        for _ in range(2)
    ]
    assert same(updates[0].state, updates[1].state)
    assert updates[0].loss == updates[1].loss


def test_worker_round_seed_and_augmentation_change_the_update(
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    def state(number: int = 0, seed: int = 7, round: int = 1, **recipe: bool) -> State:
        asked = task(worker=number, round=round, **recipe)
        return Worker(number, digits, net, units, seed).carry_out(asked, KNOWN)[0].state

    others = [state(number=1), state(seed=8), state(round=2), state(augmentation=True)]
    assert not any(same(state(), other) for other in others)


# The group lasso --------------------------------------------------------------------------------


def test_lambda_is_found_on_the_first_batch_and_remembered(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    _, memory = worker.carry_out(task(strength=0.3), WorkerMemory())
    assert memory.lasso is not None
    first = next(batches(80, 16, 1, generator(7, "batches", 0, 1)))
    inputs, labels = digits.batch(first)
    model = submodel(net, units, units.everything()).train()
    loss = F.cross_entropy(model(inputs), labels).item()
    lasso = memory.lasso * GroupLasso(model, units, units.everything()).penalty()
    assert lasso / (loss + lasso) == pytest.approx(0.3, rel=1e-5)


def test_a_remembered_lambda_is_used_and_kept(worker: Worker, task: Tasks) -> None:
    update, memory = worker.carry_out(task(strength=0.3), WorkerMemory(lasso=0.01))
    other, _ = worker.carry_out(task(strength=0.3), WorkerMemory(lasso=0.02))
    assert memory.lasso == 0.01
    assert not same(update.state, other.state)


def test_the_server_can_scale_lambda_for_a_round(worker: Worker, task: Tasks) -> None:
    doubled, memory = worker.carry_out(task(lasso_scale=2.0), WorkerMemory(lasso=0.01))
    expected, _ = worker.carry_out(task(), WorkerMemory(lasso=0.02))
    assert same(doubled.state, expected.state)
    assert memory.lasso == 0.01


def test_no_strength_means_no_lasso(worker: Worker, task: Tasks) -> None:
    update, memory = worker.carry_out(task(strength=0.0), WorkerMemory())
    plain, _ = worker.carry_out(task(strength=0.5, lasso_scale=0.0), KNOWN)
    assert memory.lasso in (None, 0.0)
    assert same(update.state, plain.state)


def test_the_lasso_makes_units_smaller(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap
) -> None:
    def penalty(strength: float) -> float:
        update, _ = worker.carry_out(task(strength=strength, epochs=6), WorkerMemory())
        model = submodel(net, units, update.kept, update.state)
        return GroupLasso(model, units, update.kept).penalty()

    assert penalty(0.9) < 0.8 * penalty(0.0)


# Pruning ----------------------------------------------------------------------------------------


def test_the_worker_prunes_by_the_order_it_is_given(
    worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    kept = units.everything()
    kept[[0, 8]] = False
    update, _ = worker.carry_out(task(kept=kept, pruning=Pruning(0.4, "index", order)), KNOWN)
    assert torch.equal(update.kept, prune(units, kept, order, 0.4))
    assert not (update.kept & ~kept).any()
    assert parameters(units, update.kept) <= 0.6 * parameters(units, kept)


def test_the_worker_prunes_to_widths_that_are_multiples(digits: Samples) -> None:
    # A unit is a third of a percent of this model, so that four of them make a block.
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    units = trace(net, torch.zeros(2, 1, 8, 8))
    worker = Worker(0, digits, net, units, seed=7)
    order = torch.rand(300, generator=torch.Generator().manual_seed(3))
    asked = Task(0, 1, net.state_dict(), units.everything(), Recipe(batch_size=16))
    for multiple, left in ((1, 203), (16, 200)):
        pruning = Pruning(0.32, "index", order, width_multiple=multiple)
        update, _ = worker.carry_out(replace(asked, pruning=pruning), KNOWN)
        assert int(update.kept.sum()) == left
        assert update.state["1.weight"].shape == (left, 64)


@pytest.mark.parametrize("name", ["l1", "taylor", "fpgm", "hrank"])
def test_an_order_of_its_own_is_computed_by_the_worker(
    worker: Worker, task: Tasks, units: UnitMap, name: str
) -> None:
    asked = task(pruning=Pruning(0.3, name))
    one, other = (worker.carry_out(asked, KNOWN)[0] for _ in range(2))
    assert parameters(units, one.kept) <= 0.7 * parameters(units, units.everything())
    assert torch.equal(one.kept, other.kept)
    assert same(one.state, other.state)


def test_an_order_of_the_servers_must_come_with_the_task(worker: Worker, task: Tasks) -> None:
    with pytest.raises(SettingError, match="computed by the server"):
        worker.carry_out(task(pruning=Pruning(0.3, "cig-bnscalor")), KNOWN)


def test_beta_1_trains_first_and_prunes_last(
    worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    pruned, _ = worker.carry_out(task(beta=1.0, pruning=Pruning(0.4, "index", order)), KNOWN)
    whole, _ = worker.carry_out(task(), KNOWN)
    assert same(pruned.state, recut(whole.state, units, whole.kept, pruned.kept))


def test_beta_0_prunes_first_and_trains_the_rest(
    worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    pruned, _ = worker.carry_out(task(beta=0.0, pruning=Pruning(0.4, "index", order)), KNOWN)
    smaller = prune(units, units.everything(), order, 0.4)
    from_the_start, _ = worker.carry_out(task(kept=smaller, beta=0.0), KNOWN)
    assert torch.equal(pruned.kept, smaller)
    assert same(pruned.state, from_the_start.state)
    assert pruned.loss == from_the_start.loss


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.9])
def test_in_between_beta_splits_the_steps(
    worker: Worker,
    task: Tasks,
    net: nn.Module,
    units: UnitMap,
    digits: Samples,
    order: Tensor,
    beta: float,
) -> None:
    asked = task(epochs=2, beta=beta, pruning=Pruning(0.4, "index", order))
    update, _ = worker.carry_out(asked, KNOWN)

    total = steps(80, 16, 2)
    first = round(beta * total)
    shuffled = list(batches(80, 16, total, generator(7, "batches", 0, 1)))
    plain = PlainTrainer(net, units, digits)
    model = plain.load(asked.kept, dict(asked.state))
    before = plain.run(model, asked.kept, shuffled[:first], None, asked.recipe, 0.001)
    smaller = prune(units, asked.kept, order, 0.4)
    model = plain.load(smaller, recut(model.state_dict(), units, asked.kept, smaller))
    after = plain.run(model, smaller, shuffled[first:], None, asked.recipe, 0.001)
    assert 0 < first < total
    assert same(update.state, model.state_dict())
    assert update.loss == pytest.approx(float(torch.cat([before, after]).mean()))
    assert int(update.state["1.num_batches_tracked"]) == total


def test_beta_means_nothing_where_nothing_is_pruned(worker: Worker, task: Tasks) -> None:
    early, late = (worker.carry_out(task(beta=beta), KNOWN)[0] for beta in (0.0, 1.0))
    assert same(early.state, late.state)


def test_a_cut_tells_what_the_pruning_did(
    worker: Worker, task: Tasks, net: nn.Module, units: UnitMap, digits: Samples, order: Tensor
) -> None:
    pruned, _ = worker.carry_out(task(beta=1.0, pruning=Pruning(0.4, "index", order)), KNOWN)
    whole, _ = worker.carry_out(task(), KNOWN)
    assert pruned.cut is not None
    scales = torch.cat([whole.state["1.weight"], whole.state["5.weight"]]).abs()
    lost = float(scales[~pruned.kept].sum() / scales.sum())
    assert pruned.cut.importance_lost == pytest.approx(lost, rel=1e-5)

    def loss(update: Update) -> float:
        model = submodel(net, units, update.kept, update.state).eval()
        inputs, labels = digits.batch(torch.arange(80))
        return F.cross_entropy(model(inputs), labels).item()

    assert pruned.cut.loss_before == pytest.approx(loss(whole), rel=1e-5)
    assert pruned.cut.loss_after == pytest.approx(loss(pruned), rel=1e-5)


def test_units_of_no_importance_cost_nothing(worker: Worker, task: Tasks, units: UnitMap) -> None:
    state = {name: tensor.clone() for name, tensor in task().state.items()}
    state["1.weight"][2] = state["1.bias"][2] = 0
    importance = torch.ones(units.count)
    importance[2] = 0
    asked = task(state=state, beta=0.0, pruning=Pruning(0.01, "index", importance))
    update, _ = worker.carry_out(asked, KNOWN)
    assert update.cut is not None
    assert (~update.kept).nonzero().flatten().tolist() == [2]
    assert update.cut.importance_lost == 0
    assert update.cut.loss_after == pytest.approx(update.cut.loss_before, rel=1e-5)


# Randomness and threads -------------------------------------------------------------------------


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


@pytest.fixture(params=[Draws.OWN, Draws.SHARED], ids=["own generator", "shared generator"])
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
    net: nn.Module, units: UnitMap, digits: Samples, task: Tasks
) -> None:
    workers = [Worker(w, digits, net, units, seed=7) for w in range(4)]
    check_threads(workers, lambda worker: task(worker=worker))


@pytest.mark.usefixtures("impatient_threads")
def test_side_by_side_in_threads_dropout_draws_the_same_numbers(
    dropping: tuple[list[Worker], Callable[[int], Task]],
) -> None:
    check_threads(*dropping)


def check_threads(workers: list[Worker], task_of: Callable[[int], Task]) -> None:
    def carry_out(number: int) -> Update:
        return workers[number % 4].carry_out(task_of(number % 4), WorkerMemory())[0]

    alone = [carry_out(number) for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(carry_out, range(16)))
    for number, update in enumerate(together):
        assert same(update.state, alone[number % 4].state)
        assert update.loss == alone[number % 4].loss


def test_a_worker_that_finishes_does_not_disturb_the_one_that_waited_for_it(
    dropping: tuple[list[Worker], Callable[[int], Task]], monkeypatch: pytest.MonkeyPatch
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
    dropping: tuple[list[Worker], Callable[[int], Task]],
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
    dropping: tuple[list[Worker], Callable[[int], Task]],
) -> None:
    workers, task_of = dropping
    one, other = (workers[w].carry_out(task_of(w), KNOWN)[0] for w in (0, 1))
    assert not same(one.state, other.state)


def test_dropout_is_the_same_from_either_generator(digits: Samples) -> None:
    torch.manual_seed(0)
    model = Dropping()
    units = trace(model, torch.zeros(2, 1, 8, 8))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    task = Task(0, 1, state, units.everything(), Recipe(epochs=1, batch_size=16))
    own, shared = (
        Worker(0, digits, model, units, 7, draws_randomness=draws).carry_out(task, KNOWN)[0]
        for draws in (Draws.OWN, Draws.SHARED)
    )
    assert same(own.state, shared.state)
