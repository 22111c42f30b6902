"""A worker prunes when it is told to, at the time β says, and tells what that did."""

from __future__ import annotations

from collections.abc import Callable
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
from adaptcl.training.batches import batches, mini_batch_count
from adaptcl.training.trainer import PlainTrainer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap, parameters, recut, submodel, trace

Tasks = Callable[..., Task]
Same = Callable[[State, State], bool]
KNOWN = WorkerMemory(lasso_lambda=0.001)


def test_the_worker_prunes_by_the_order_it_is_given(
    worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    kept = units.everything()
    kept[[0, 8]] = False
    update, _ = worker.carry_out(task(kept=kept, pruning=Pruning(0.4, "index", order)), KNOWN)
    assert torch.equal(update.kept, prune(units, kept, order, 0.4))
    assert update.importance is None  # the server knows it
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
    same: Same, worker: Worker, task: Tasks, units: UnitMap, name: str
) -> None:
    asked = task(pruning=Pruning(0.3, name))
    one, other = (worker.carry_out(asked, KNOWN)[0] for _ in range(2))
    assert parameters(units, one.kept) <= 0.7 * parameters(units, units.everything())
    assert torch.equal(one.kept, other.kept)
    assert same(one.state, other.state)
    assert one.importance is not None
    assert torch.equal(one.kept, prune(units, units.everything(), one.importance, 0.3))


def test_an_order_of_the_servers_must_come_with_the_task(worker: Worker, task: Tasks) -> None:
    with pytest.raises(SettingError, match="computed by the server"):
        worker.carry_out(task(pruning=Pruning(0.3, "cig-bnscalor")), KNOWN)


def test_beta_1_trains_first_and_prunes_last(
    same: Same, worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    pruned, _ = worker.carry_out(task(beta=1.0, pruning=Pruning(0.4, "index", order)), KNOWN)
    whole, _ = worker.carry_out(task(), KNOWN)
    assert same(pruned.state, recut(whole.state, units, whole.kept, pruned.kept))


def test_beta_0_prunes_first_and_trains_the_rest(
    same: Same, worker: Worker, task: Tasks, units: UnitMap, order: Tensor
) -> None:
    pruned, _ = worker.carry_out(task(beta=0.0, pruning=Pruning(0.4, "index", order)), KNOWN)
    smaller = prune(units, units.everything(), order, 0.4)
    from_the_start, _ = worker.carry_out(task(kept=smaller, beta=0.0), KNOWN)
    assert torch.equal(pruned.kept, smaller)
    assert same(pruned.state, from_the_start.state)
    assert pruned.loss == from_the_start.loss


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.9])
def test_in_between_beta_splits_the_steps(
    same: Same,
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

    total = mini_batch_count(80, 16, 2)
    first = round(beta * total)
    shuffled = list(batches(80, 16, total, generator(7, "batches", 0, 1)))
    plain = PlainTrainer(net, units, digits)
    model = plain.load(asked.kept, dict(asked.state))
    before = plain.run(shuffled[:first], None, asked.recipe, 0.001)
    smaller = prune(units, asked.kept, order, 0.4)
    model = plain.load(smaller, recut(model.state_dict(), units, asked.kept, smaller))
    after = plain.run(shuffled[first:], None, asked.recipe, 0.001)
    assert 0 < first < total
    assert same(update.state, model.state_dict())
    assert update.loss == pytest.approx(float(torch.cat([before, after]).mean()))
    assert int(update.state["1.num_batches_tracked"]) == total


def test_beta_means_nothing_where_nothing_is_pruned(
    same: Same, worker: Worker, task: Tasks
) -> None:
    early, late = (worker.carry_out(task(beta=beta), KNOWN)[0] for beta in (0.0, 1.0))
    assert same(early.state, late.state)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_cut_tells_what_was_lost_and_the_loss_before_it_and_at_the_end_of_the_round(
    worker: Worker,
    task: Tasks,
    net: nn.Module,
    units: UnitMap,
    digits: Samples,
    order: Tensor,
    beta: float,
) -> None:
    asked = task(beta=beta, pruning=Pruning(0.4, "index", order))
    pruned, _ = worker.carry_out(asked, KNOWN)
    assert pruned.pruning_cost is not None
    trained, _ = worker.carry_out(task(), KNOWN)
    before: Task | Update = trained if beta == 1 else asked
    scales = torch.cat([before.state["1.weight"], before.state["5.weight"]]).abs()
    lost = float(scales[~pruned.kept].sum() / scales.sum())
    assert pruned.pruning_cost.importance_lost == pytest.approx(lost, rel=1e-5)

    def loss(of: Task | Update) -> float:
        model = submodel(net, units, of.kept, dict(of.state)).eval()
        inputs, labels = digits.batch(torch.arange(80))
        return F.cross_entropy(model(inputs), labels).item()

    assert pruned.pruning_cost.loss_before == pytest.approx(loss(before), rel=1e-5)
    assert pruned.pruning_cost.loss_after == pytest.approx(loss(pruned), rel=1e-5)


def test_units_of_no_importance_cost_nothing(worker: Worker, task: Tasks, units: UnitMap) -> None:
    state = {name: tensor.clone() for name, tensor in task().state.items()}
    state["1.weight"][2] = state["1.bias"][2] = 0
    importance = torch.ones(units.count)
    importance[2] = 0
    pruning = Pruning(0.01, "index", importance)
    asked = task(state=state, beta=1.0, learning_rate=1e-12, pruning=pruning)
    update, _ = worker.carry_out(asked, KNOWN)
    assert update.pruning_cost is not None
    assert (~update.kept).nonzero().flatten().tolist() == [2]
    assert update.pruning_cost.importance_lost == pytest.approx(0, abs=1e-9)
    assert update.pruning_cost.loss_after == pytest.approx(
        update.pruning_cost.loss_before, rel=1e-5
    )
