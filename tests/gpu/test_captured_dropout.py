"""Captured steps of models that draw random numbers; `make test-gpu` runs these."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import adaptcl
from adaptcl.data import Samples, load
from adaptcl.training.batches import batches
from adaptcl.training.devices import trainers
from adaptcl.training.gpu.captured_trainer import CapturedTrainer
from adaptcl.training.randomness import Draws, draws_randomness, seeded
from adaptcl.training.task import Recipe
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.units import State, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

RECIPE = Recipe(batch_size=32, learning_rate=0.02, strength=0.3)


class Dropping(nn.Module):
    """Images, then rows, with something in between that draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor] = F.dropout) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = (
            nn.Conv2d(1, 16, 3),
            nn.Linear(16 * 13 * 13, 64),
            nn.Linear(64, 10),
        )
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = self.hidden((self.draw(x) if self.training else x).flatten(1))
        scores: Tensor = self.head(F.dropout(F.relu(x), 0.25, self.training))
        return scores


def recomputed(x: Tensor) -> Tensor:
    found: Tensor = checkpoint(F.dropout, x, use_reentrant=False)
    return found


@pytest.fixture(scope="module")
def images() -> Samples:
    return load("fashion").train.take(torch.arange(400)).to("cuda")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Dropping().cuda()


def train(chosen: Trainer, net: nn.Module, images: Samples, seed: int) -> tuple[Tensor, State]:
    """One epoch of a task with that seed; the losses and where it ended."""
    units = trace(net, torch.zeros(2, 1, 28, 28, device="cuda"))
    kept = units.everything()
    steps = list(batches(len(images), 32, 13, torch.Generator().manual_seed(1)))
    with seeded(Draws.TASK_SEED, seed) as seed_model:
        model = seed_model(chosen.load(kept, dict(net.state_dict())))
        losses = chosen.run(steps, None, RECIPE, 1e-4)
        end = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chosen.release()
    return losses, end


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (F.dropout, Draws.TASK_SEED),
        (F.dropout2d, Draws.TASK_SEED),
        (F.alpha_dropout, Draws.TASK_SEED),
        (lambda x: x + torch.rand_like(x), Draws.SHARED),
        (recomputed, Draws.SHARED),
    ],
    ids=["dropout", "channels", "alpha dropout", "noise", "recomputed"],
)
def test_what_a_model_draws_is_found_by_trying(
    draw: Callable[[Tensor], Tensor], expected: Draws
) -> None:
    example = torch.randn(2, 1, 28, 28, device="cuda")
    before = torch.cuda.get_rng_state()
    assert draws_randomness(Dropping(draw).cuda(), example) is expected
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_captured_steps_draw_what_the_plain_loop_draws(images: Samples, net: nn.Module) -> None:
    units = trace(net, torch.zeros(2, 1, 28, 28, device="cuda"))
    captured = trainers(net, units, [images], "float32")[0]
    assert isinstance(captured, CapturedTrainer)
    for seed in (3, 4):
        found, _ = train(captured, net, images, seed)
        expected, _ = train(PlainTrainer(net, units, images), net, images, seed)
        assert torch.allclose(found, expected, atol=2e-3)


def test_a_captured_model_that_is_lent_again_draws_by_the_next_seed(
    images: Samples, net: nn.Module
) -> None:
    units = trace(net, torch.zeros(2, 1, 28, 28, device="cuda"))
    chosen = trainers(net, units, [images], "bf16")[0]
    before = torch.cuda.get_rng_state()
    first, other, again = (train(chosen, net, images, seed) for seed in (3, 4, 3))
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert torch.allclose(first[0], again[0], atol=1e-3)
    assert not torch.allclose(first[0], other[0], atol=1e-2)


def test_the_number_of_threads_changes_nothing(images: Samples) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10)
    )
    parts = [images.take(torch.arange(i, i + 41)) for i in range(0, 328, 41)]
    ends = []
    for threads in (1, 4):
        result = adaptcl.run(
            copy.deepcopy(net),
            [(part.batch(torch.arange(41, device="cuda"))[0], part.labels) for part in parts],
            (images.batch(torch.arange(100, device="cuda"))[0], images.labels[:100]),
            strategy="fedavg",
            rounds=3,
            epochs=2.0,
            batch_size=20,
            device="cuda",
            precision="float32",
            threads=threads,
        )
        ends.append(result.model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
