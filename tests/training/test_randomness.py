"""Where a model draws from, and that a task draws the same numbers whatever runs beside it."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adaptcl.training import randomness
from adaptcl.training.gpu.task_dropout import Drop
from adaptcl.training.randomness import Draws, draws_randomness, follows_seed, seeded


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


def unseen(x: Tensor) -> Tensor:
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


def test_a_model_that_draws_nothing_needs_no_generator() -> None:
    for layer in (nn.Dropout(0.0), nn.ReLU(), nn.BatchNorm1d(40)):
        assert draws_randomness(Applied(layer).eval(), torch.randn(2, 3)) is Draws.NOTHING


def test_what_operations_draw_can_come_from_the_tasks_generator() -> None:
    for name, layer in DROPPING.items():
        found = draws_randomness(Applied(layer).eval(), torch.randn(2, 3))
        assert found is Draws.TASK_GENERATOR, name


@pytest.mark.parametrize(
    "middle",
    [
        recomputed,
        unseen,
        lambda x: F.dropout(x) * random.random(),
        lambda x: x if random.random() < 2 else -x,
        lambda x: x * np.random.rand(),
    ],
    ids=[
        "recomputing activations",
        "no operation",
        "PyTorch's and Python's generators",
        "Python's generator",
        "NumPy's generator",
    ],
)
def test_what_cannot_be_told_apart_takes_turns(middle: object) -> None:
    assert draws_randomness(Applied(middle), torch.randn(2, 3)) is Draws.SHARED


def test_a_model_that_cannot_train_on_the_example_takes_turns() -> None:
    fours = nn.Unflatten(0, (4, -1))
    assert draws_randomness(Applied(fours), torch.randn(2, 3)) is Draws.SHARED


def from_each_generator() -> tuple[float, float, float]:
    """A number from each of the process's generators."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def all_generators() -> bytes:
    """The states of the process's generators."""
    return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))


def test_who_takes_turns_draws_by_its_own_seed_and_leaves_all_generators_alone() -> None:
    drawn = []
    for seed, others in ((3, 1), (3, 2), (2**63 + 4, 1)):
        random.seed(others)
        np.random.seed(others)
        torch.manual_seed(others)
        states = all_generators()
        with seeded(Draws.SHARED, seed):
            drawn.append(from_each_generator())
        assert all_generators() == states
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])


def test_looking_leaves_pythons_and_numpys_generators_alone() -> None:
    model = Applied(lambda x: x * random.random() * np.random.rand())
    states = all_generators()
    draws_randomness(model, torch.ones(2, 3))
    assert all_generators() == states


def test_looking_changes_neither_the_model_nor_the_generator() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dice = torch.get_rng_state()
    draws_randomness(model, torch.ones(2, 3))
    assert torch.equal(dice, torch.get_rng_state())
    assert not model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["dropout", "rrelu", "randperm", "multinomial", "attention"])
def test_a_task_draws_by_its_seed_alone_and_leaves_the_shared_generator_as_it_was(
    name: str,
) -> None:
    model, x = Applied(DROPPING[name]).train(), torch.randn(5, 3)
    found: list[list[Tensor]] = []
    for seed, shared in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(shared)
        before = torch.get_rng_state()
        with seeded(Draws.TASK_GENERATOR, seed) as seed_model:
            tried = seed_model(copy.deepcopy(model))
            found.append([tried(x), tried(x)])
        assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, found[0], found[1]))
    assert not torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[0][0], found[2][0])


def test_a_forward_pass_that_fails_leaves_no_generator_behind() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError

    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with seeded(Draws.TASK_GENERATOR, 3) as seed_model, pytest.raises(ValueError):  # noqa: PT011
        seed_model(Applied(fail))(torch.randn(2, 3))
    torch.manual_seed(11)
    assert torch.equal(torch.rand(3), expected)


# On a GPU dropout draws by a seed of the task. All but the kernel can be tried here.

KINDS_OF_DROPOUT = ("dropout", "dropout of whole channels", "alpha dropout", "attention")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, drop: Drop) -> None:
    monkeypatch.setattr(randomness, "_DROP", drop)


@pytest.mark.usefixtures("kernel")
def test_dropout_of_every_kind_follows_a_seed_and_nothing_else_does() -> None:
    for name, layer in DROPPING.items():
        with torch.random.fork_rng():
            follows = follows_seed(Applied(layer), torch.randn(2, 3))
        assert follows == (name in KINDS_OF_DROPOUT), name


@pytest.mark.parametrize(
    "middle",
    [recomputed, lambda x: F.dropout(x) * random.random(), lambda x: F.dropout(x) * torch.rand(40)],
    ids=["recomputing activations", "Python's generator too", "another operation that draws"],
)
@pytest.mark.usefixtures("kernel")
def test_a_model_that_also_draws_elsewhere_does_not_follow_a_seed(middle: object) -> None:
    with torch.random.fork_rng():
        assert not follows_seed(Applied(middle), torch.randn(20, 3))


def test_without_the_kernel_no_model_follows_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_DROP", None)
    with torch.random.fork_rng():
        assert not follows_seed(Applied(nn.Dropout()), torch.randn(2, 3))


@pytest.mark.usefixtures("kernel")
def test_the_seed_alone_says_what_a_task_draws() -> None:
    model, x = Applied(nn.Dropout()).train(), torch.randn(5, 3)

    def drawn(seed: int) -> list[Tensor]:
        with seeded(Draws.TASK_SEED, seed) as seed_model:
            return [seed_model(model)(x), model(x)]

    first, other, again = drawn(3), drawn(4), drawn(3)  # the same model, lent three times
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


@pytest.mark.usefixtures("kernel")
def test_a_task_with_two_models_does_not_draw_the_same_for_both() -> None:
    one, x = Applied(nn.Dropout()).train(), torch.randn(5, 3)
    other = copy.deepcopy(one)
    with seeded(Draws.TASK_SEED, 3) as seed_model:
        assert not torch.equal(seed_model(one)(x), seed_model(other)(x))
