"""Captured steps of any objective against the plain loop; `make test-gpu` runs these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adaptcl
from adaptcl.data import Samples
from adaptcl.errors import AdaptCLWarning
from adaptcl.training.batches import batches
from adaptcl.training.devices import trainers
from adaptcl.training.gpu.captured_trainer import CapturedTrainer
from adaptcl.training.objectives.objective import OBJECTIVES, Objective, custom_objective
from adaptcl.training.task import Recipe
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DEVICE = "cuda"
RECIPE = Recipe(batch_size=32, learning_rate=0.02, strength=0.3)
COUNT = 80
"""Two batches of 32 samples and one of 16."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def whole_numbers(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(most))


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, outputs)
    )


class Pair(nn.Module):
    """Two inputs by name; with labels it computes its loss as well."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 16), nn.Linear(5, 16), nn.Linear(16, 1)

    def forward(self, left: Tensor, right: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(torch.relu(self.left(left) + self.right(right)))[:, 0]
        loss = None if labels is None else F.smooth_l1_loss(logits, labels)
        return {"logits": logits, "loss": loss}


def weighted(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    """A loss for each sample, with a weight that comes with the targets."""
    wanted, weight = targets
    return weight * (outputs - wanted).abs()


def pair() -> dict[str, Tensor]:
    return {"left": drawn(COUNT, 3), "right": drawn(COUNT, 5)}


def regression() -> tuple[nn.Module, Samples, Objective]:
    return mlp(1), Samples(drawn(COUNT, 8), drawn(COUNT)), OBJECTIVES["regression"]


def several_labels() -> tuple[nn.Module, Samples, Objective]:
    targets = whole_numbers(2, COUNT, 5).float()
    return mlp(5), Samples(drawn(COUNT, 8), targets), OBJECTIVES["multi-label"]


def segmentation() -> tuple[nn.Module, Samples, Objective]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    images = whole_numbers(256, COUNT, 1, 12, 12).to(torch.uint8)
    samples = Samples(images, whole_numbers(3, COUNT, 12, 12), (0.5,), (0.3,))
    return model, samples, OBJECTIVES["segmentation"]


def language_modelling() -> tuple[nn.Module, Samples, Objective]:
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 20))
    tokens = whole_numbers(20, COUNT, 9)
    samples = Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return model, samples, OBJECTIVES["language-modelling"]


def volumes() -> tuple[nn.Module, Samples, Objective]:
    """Filters of five dimensions have no channels-last layout of images."""
    model = nn.Sequential(nn.Conv3d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8, 1))
    samples = Samples(drawn(COUNT, 1, 4, 4, 4), drawn(COUNT))
    return model, samples, OBJECTIVES["regression"]


def own_loss_of_several_inputs_and_targets() -> tuple[nn.Module, Samples, Objective]:
    samples = Samples(pair(), (drawn(COUNT), drawn(COUNT).abs()))
    return Pair(), samples, custom_objective(loss=weighted)


def smoothed_classes() -> tuple[nn.Module, Samples, Objective]:
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    samples = Samples(drawn(COUNT, 8), whole_numbers(4, COUNT))
    return mlp(4), samples, custom_objective(loss=smoothed, like="classification")


def loss_of_the_model() -> tuple[nn.Module, Samples, Objective]:
    return Pair(), Samples(pair(), drawn(COUNT)), custom_objective(loss="model")


CASES = (
    regression,
    several_labels,
    segmentation,
    language_modelling,
    volumes,
    own_loss_of_several_inputs_and_targets,
    smoothed_classes,
    loss_of_the_model,
)


def order(count: int) -> list[Tensor]:
    return list(batches(COUNT, 32, count, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_captured_steps_of_any_objective_end_where_the_plain_loop_does(
    case: Callable[[], tuple[nn.Module, Samples, Objective]],
) -> None:
    torch.manual_seed(1)
    model, samples, objective = case()
    model, samples = model.to(DEVICE), samples.to(DEVICE)
    units = trace(model, samples.batch(torch.arange(2, device=DEVICE))[0])
    kept, state = units.everything(), {k: v.clone() for k, v in model.state_dict().items()}
    mine = trainers(model, units, [samples], "float32", objective)[0]
    assert isinstance(mine, CapturedTrainer)
    plain = PlainTrainer(model, units, samples, objective=objective)
    for _ in range(2):  # the second time with what was captured the first time
        mine.load(kept, state)
        plain.load(kept, state)
        losses = mine.run(order(3), None, RECIPE, 1e-4)  # without capture it would warn
        wanted = plain.run(order(3), None, RECIPE, 1e-4)
        torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-4)
        ends = plain.state()
        apart = sum(float((ends[n] - t).double().square().sum()) for n, t in mine.state().items())
        went = sum(float((ends[n] - t).double().square().sum()) for n, t in state.items())
        assert went > 0
        assert math.sqrt(apart / went) < 0.01


def decided_on_the_host(outputs: Tensor, targets: Tensor) -> Tensor:
    error = (outputs[:, 0] - targets).square().mean()
    return error if float(error.detach()) < 1e9 else error / 2


class Annealed:
    """A loss that weighs less from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return (1 + 1 / self.calls) * F.mse_loss(outputs[:, 0], targets)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: decided_on_the_host, "without capture"),
        (Annealed, "the loss changes while outputs and targets"),
    ],
)
def test_a_loss_that_cannot_be_replayed_trains_in_the_plain_loop_and_a_warning_says_why(
    make: Callable[[], Any], reason: str
) -> None:
    torch.manual_seed(1)
    model, samples = mlp(1).to(DEVICE), Samples(drawn(COUNT, 8), drawn(COUNT)).to(DEVICE)
    units = trace(model, samples.batch(torch.arange(2, device=DEVICE))[0])
    kept, state = units.everything(), dict(model.state_dict())
    losses = []
    for _ in range(2):
        mine = trainers(model, units, [samples], "float32", custom_objective(loss=make()))[0]
        mine.load(kept, state)
        with pytest.warns(AdaptCLWarning, match=reason):
            losses.append(mine.run(order(9), None, RECIPE, 1e-4))
    assert float(losses[0][-3:].mean()) < float(losses[0][:3].mean())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)


def test_samples_that_are_padded_to_different_lengths_train_in_the_plain_loop() -> None:
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)).to(DEVICE)
    parts = [Samples(whole_numbers(20, 40, n), whole_numbers(20, 40, n)) for n in (5, 7)]
    on_gpu = [each.to(DEVICE) for each in parts]
    units = trace(model, on_gpu[0].inputs[:2])
    objective = OBJECTIVES["language-modelling"]
    made = trainers(model, units, on_gpu, "float32", objective)
    assert all(isinstance(each, PlainTrainer) for each in made)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_with_a_loss_of_the_users_is_captured_pruned_and_learns(
    precision: str,
) -> None:
    inputs = drawn(400, 8)
    targets = inputs @ drawn(8)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    result = adaptcl.run(
        model,
        (inputs[:300], targets[:300]),
        (inputs[300:], targets[300:]),
        loss=lambda outputs, wanted: F.huber_loss(outputs[:, 0], wanted),
        metrics={"worst": lambda outputs, wanted: (outputs[:, 0] - wanted).abs().max()},
        strategy="adaptcl",
        pruning_interval=2,
        workers=3,
        rounds=8,
        sigma=4.0,
        learning_rate=0.05,
        device=DEVICE,
        precision=precision,
    )
    assert min(result.summary.retention) < 1
    first, *_, last = [each.test_loss for each in result.rounds if each.test_loss is not None]
    assert last < 0.3 * first
