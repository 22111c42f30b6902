"""Captured steps against the plain loop; `make test-gpu` runs these."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples, load
from adaptcl.errors import AdaptCLWarning
from adaptcl.models import build
from adaptcl.pruning import fit
from adaptcl.training.batches import batches
from adaptcl.training.devices import trainers
from adaptcl.training.gpu.captured_model import CapturedModel
from adaptcl.training.gpu.captured_trainer import CapturedTrainer
from adaptcl.training.task import Recipe
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import State, UnitMap, cut, parameters, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

RECIPE = Recipe(batch_size=32, learning_rate=0.02, strength=0.3)


@pytest.fixture(scope="module")
def images() -> Samples:
    return load("fashion").train.take(torch.arange(400)).to("cuda")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return build("small", (1, 28, 28), 10, 1).cuda()


@pytest.fixture(scope="module")
def units(net: nn.Module) -> UnitMap:
    return trace(net, torch.zeros(2, 1, 28, 28, device="cuda"))


def order(samples: int, count: int, seed: int = 0) -> list[Tensor]:
    return list(batches(samples, 32, count, torch.Generator().manual_seed(seed)))


def relative(before: State, plain: State, captured: State) -> float:
    """How far two trainings came apart, against how far they went."""
    apart = sum(float((plain[n].double() - captured[n]).square().sum()) for n in before)
    went = sum(float((plain[n].double() - before[n]).square().sum()) for n in before)
    return math.sqrt(apart / went)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_in_full_precision_captured_steps_end_where_the_plain_loop_does(
    images: Samples, net: nn.Module, units: UnitMap, share: float
) -> None:
    importance = torch.rand(units.count, generator=torch.Generator().manual_seed(1))
    everything = units.everything()
    kept = fit(units, everything, importance, share * parameters(units, everything))
    state = cut(net.state_dict(), units, kept)
    mine, plain = trainers(net, units, [images], "float32")[0], PlainTrainer(net, units, images)
    assert isinstance(mine, CapturedTrainer)
    # Three steps, the last on a smaller batch. After more of them even trainings that differ in
    # their last bits only come apart.
    images = images.take(torch.arange(80))
    steps = order(len(images), 3)
    for _ in range(2):  # the second time in the place of the first, with nothing left of it
        captured_model, plain_model = mine.load(kept, state), plain.load(kept, state)
        captured = mine.run(steps, None, RECIPE, 1e-4)
        expected = plain.run(steps, None, RECIPE, 1e-4)
        assert torch.allclose(captured, expected, atol=1e-3)
        assert relative(state, plain_model.state_dict(), captured_model.state_dict()) < 0.01


def test_another_learning_rate_is_followed_without_another_capture(
    images: Samples, net: nn.Module, units: UnitMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    mine, plain = trainers(net, units, [images], "float32")[0], PlainTrainer(net, units, images)
    recipe = replace(RECIPE, learning_rate_decay=0.5)
    steps = order(80, 3)
    mine.load(kept, state)
    mine.run(steps, None, recipe, 1e-4)
    monkeypatch.setattr(CapturedModel, "_captured", None)
    for number in (2, 5):
        captured, expected = mine.load(kept, state), plain.load(kept, state)
        mine.run(steps, None, recipe.in_round(number), 1e-4)
        plain.run(steps, None, recipe.in_round(number), 1e-4)
        assert relative(state, expected.state_dict(), captured.state_dict()) < 0.01


@pytest.mark.parametrize("recipe", [replace(RECIPE, optimizer="adamw"), RECIPE])
def test_what_is_not_plain_sgd_is_trained_by_the_plain_loop(
    images: Samples, net: nn.Module, units: UnitMap, recipe: Recipe
) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    mine, plain = trainers(net, units, [images], "float32")[0], PlainTrainer(net, units, images)
    towards = state if recipe is RECIPE else None
    recipe = replace(recipe, proximal=0.1 if towards else 0.0)
    ends = []
    for each in (mine, plain):
        each.load(kept, state)
        each.run(order(80, 3), None, recipe, 1e-4, towards)
        ends.append(each.state())
    # AdamW divides by the gradient's size, so noise in the smallest gradients makes whole steps.
    assert relative(state, ends[1], ends[0]) < (0.05 if recipe.optimizer == "adamw" else 0.01)


def test_in_half_precision_a_model_learns_as_well(
    images: Samples, net: nn.Module, units: UnitMap
) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    steps = order(len(images), 60)
    half, plain = trainers(net, units, [images], "bf16")[0], PlainTrainer(net, units, images)
    half.load(kept, state)
    losses = half.run(steps, None, RECIPE, 1e-4)
    plain.load(kept, state)
    expected = plain.run(steps, None, RECIPE, 1e-4)
    assert float(losses[-10:].mean()) < 0.5 * float(losses[:5].mean())
    assert float(losses[-10:].mean()) == pytest.approx(float(expected[-10:].mean()), abs=0.1)


def test_the_same_steps_give_the_same_bits(images: Samples, net: nn.Module, units: UnitMap) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    mine = trainers(net, units, [images], "bf16")[0]
    ends = []
    for _ in range(2):
        model = mine.load(kept, state)
        mine.run(order(len(images), 13), None, RECIPE, 1e-4)
        ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in state)


def test_the_state_is_that_of_the_model_apart_from_it_and_in_the_usual_layout(
    images: Samples, net: nn.Module, units: UnitMap
) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    mine = trainers(net, units, [images], "float32")[0]
    for count in (3, 5):  # the second time with what was captured the first time
        model = mine.load(kept, state)
        assert all(torch.equal(t, state[name]) for name, t in mine.state().items())
        mine.run(order(len(images), count), None, RECIPE, 1e-4)
        found = mine.state()
        assert list(found) == list(state)
        assert all(torch.equal(t, found[name]) for name, t in model.state_dict().items())
        assert all(t.is_contiguous() for t in found.values())
        mine.load(kept, state)
        assert not torch.equal(found["classifier.weight"], state["classifier.weight"])


def test_workers_of_one_shape_share_a_captured_model(
    images: Samples, net: nn.Module, units: UnitMap
) -> None:
    kept, state = units.everything(), dict(net.state_dict())
    parts = [images.take(torch.arange(i, i + 100)) for i in range(0, 400, 100)]
    each_trainer = trainers(net, units, parts, "float32")
    seen = set()
    for part, each in zip(parts, each_trainer, strict=True):
        model = each.load(kept, state)
        losses = each.run(order(100, 4), None, RECIPE, 1e-4)
        plain = PlainTrainer(net, units, part)
        plain.load(kept, state)
        expected = plain.run(order(100, 4), None, RECIPE, 1e-4)
        assert torch.allclose(losses, expected, atol=2e-3)  # each sees its own samples
        seen.add(id(model))
        each.release()
    assert len(seen) == 1


def test_tasks_of_one_worker_at_the_same_time_have_a_captured_model_each(
    images: Samples, net: nn.Module, units: UnitMap
) -> None:
    """As when a worker leaves, which stops no training, and comes back."""
    kept, state = units.everything(), dict(net.state_dict())
    mine = trainers(net, units, [images], "float32")[0]
    alone = mine.for_a_task()
    alone.load(kept, state)
    alone.release()
    old, new = mine.for_a_task(), mine.for_a_task()
    assert old.load(kept, state) is not new.load(kept, state)
    old.run(order(len(images), 5), None, RECIPE, 1e-4)
    assert all(torch.equal(t, state[name]) for name, t in new.state().items())
    old.release()
    new.release()


def test_augmented_images_are_those_of_the_plain_loop(
    images: Samples, net: nn.Module, units: UnitMap
) -> None:
    from dataclasses import replace

    from adaptcl.training.batches import draw_moves

    kept, state = units.everything(), dict(net.state_dict())
    recipe = replace(RECIPE, augmentation=True)
    steps = order(len(images), 6)
    moves = [draw_moves(len(each), torch.Generator().manual_seed(3)) for each in steps]
    mine, plain = trainers(net, units, [images], "float32")[0], PlainTrainer(net, units, images)
    mine.load(kept, state)
    losses = mine.run(steps, moves, recipe, 1e-4)
    plain.load(kept, state)
    expected = plain.run(steps, moves, recipe, 1e-4)
    assert torch.allclose(losses, expected, atol=2e-3)


class Undecided(nn.Module):
    """What it does depends on its data, which no captured step can do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.conv(x)).mean((2, 3))
        if float(hidden.sum()) > 1e9:
            hidden = hidden * 2
        scores: Tensor = self.head(hidden)
        return scores


def test_what_cannot_be_captured_runs_in_the_plain_loop_with_one_warning(
    images: Samples,
) -> None:
    model = Undecided().cuda()
    units = trace(model, torch.zeros(2, 1, 28, 28, device="cuda"))
    kept, state = units.everything(), dict(model.state_dict())
    mine, plain = trainers(model, units, [images], "float32")[0], PlainTrainer(model, units, images)
    mine.load(kept, state)
    with pytest.warns(AdaptCLWarning, match="without capture"):
        mine.run(order(400, 5), None, RECIPE, 1e-4)
    mine.load(kept, state)
    losses = mine.run(order(400, 5), None, RECIPE, 1e-4)
    plain.load(kept, state)
    expected = plain.run(order(400, 5), None, RECIPE, 1e-4)
    assert torch.allclose(losses, expected, atol=1e-3)
    torch.randn(3, device="cuda")  # a failed capture has not taken the GPU's generator with it
