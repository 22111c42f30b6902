from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adaptcl.training.randomness import Draws, OwnGenerator, draws_randomness, seeded


class Applied(nn.Module):
    """A net with any function in its middle."""

    def __init__(self, middle: object) -> None:
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(3, 40), nn.Linear(40, 2), middle

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.middle(self.first(x)))  # type: ignore[operator]
        return scores


def recomputed(x: Tensor) -> Tensor:
    found: Tensor = checkpoint(F.dropout, x, use_reentrant=False)
    return found


def through_its_own_door(x: Tensor) -> Tensor:
    """Draws in no operation that can be seen."""
    torch.default_generator.manual_seed(int(torch.default_generator.get_state()[8]) + 1)
    return x + torch.default_generator.seed() % 100


DROPPING = {
    "dropout": nn.Dropout(0.5),
    "dropout of whole channels": nn.Dropout1d(0.5),
    "alpha dropout": nn.AlphaDropout(),
    "rrelu": nn.RReLU(),
    "rand": lambda x: x * torch.rand(40),
    "randn_like": lambda x: x + torch.randn_like(x),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randint": lambda x: x + torch.randint(0, 9, (40,)),
    "randperm": lambda x: x[:, torch.randperm(40)],
    "normal in place": lambda x: x + torch.empty(40).normal_(),
    "exponential": lambda x: x + torch.empty(40).exponential_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((40,), 0.5)),
    "multinomial": lambda x: x + torch.multinomial(torch.ones(40), 1),
    "gumbel softmax": lambda x: F.gumbel_softmax(x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[
        0
    ],
}


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.ReLU(), nn.BatchNorm1d(40)])
def test_a_model_that_draws_nothing_needs_no_generator(layer: nn.Module) -> None:
    assert draws_randomness(Applied(layer).eval(), torch.randn(2, 3)) is Draws.NOTHING


@pytest.mark.parametrize("name", DROPPING)
def test_what_operations_draw_can_come_from_a_generator_of_its_own(name: str) -> None:
    assert draws_randomness(Applied(DROPPING[name]).eval(), torch.randn(2, 3)) is Draws.OWN


@pytest.mark.parametrize(
    "middle",
    [recomputed, through_its_own_door, lambda x: F.dropout(x) * random.random()],
    ids=["recomputing activations", "no operation", "Python's own dice"],
)
def test_what_cannot_be_told_apart_takes_turns(middle: object) -> None:
    assert draws_randomness(Applied(middle), torch.randn(2, 3)) is Draws.SHARED


def test_looking_changes_neither_the_model_nor_the_generator() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dice = torch.get_rng_state()
    draws_randomness(model, torch.ones(2, 3))
    assert torch.equal(dice, torch.get_rng_state())
    assert not model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", DROPPING)
def test_an_own_generator_draws_what_the_shared_one_would_and_leaves_it_alone(name: str) -> None:
    model, x = Applied(DROPPING[name]).train(), torch.randn(5, 3)
    with seeded(Draws.SHARED, 3) as follow:
        expected = [follow(model)(x), model(x)]
    before = torch.get_rng_state()
    with seeded(Draws.OWN, 3) as follow:
        found = [follow(model)(x), model(x)]
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, expected, found))
    assert not torch.equal(found[0], found[1])


def test_a_generator_that_is_given_is_used() -> None:
    def draw() -> Tensor:
        mine = torch.Generator().manual_seed(1)
        return torch.cat([torch.rand(3, generator=mine), torch.empty(3).normal_(generator=mine)])

    with OwnGenerator(5):
        inside = draw()
    assert torch.equal(inside, draw())


def test_another_thread_draws_from_the_shared_generator_all_the_same() -> None:
    drawn: list[Tensor] = []
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with OwnGenerator(5):
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(3)))
        thread.start()
        thread.join()
    assert torch.equal(drawn[0], expected)


def test_a_forward_pass_that_fails_leaves_no_generator_behind() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError

    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with seeded(Draws.OWN, 3) as follow, pytest.raises(ValueError):  # noqa: PT011
        follow(Applied(fail))(torch.randn(2, 3))
    torch.manual_seed(11)
    assert torch.equal(torch.rand(3), expected)
