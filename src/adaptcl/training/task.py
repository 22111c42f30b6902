"""How a worker trains: the numbers of local training, the same for every worker of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from adaptcl.settings import With, setting
from adaptcl.training.batches import steps, steps_of_round
from adaptcl.units import Kept, State

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """Settings of local training (Sec. III-B and the configurations of the paper's appendix)."""

    epochs: float = setting(
        2.0, "local epochs per round (E); fractions are allowed", above=0, at_most=1000
    )
    batch_size: int = setting(64, "samples per mini-batch", at_least=1)
    optimizer: str = setting("sgd", "the optimizer of local training", choices=OPTIMIZERS)
    learning_rate: float = setting(0.01, "learning rate of local training", above=0)
    learning_rate_decay: float = setting(
        1.0, "multiply the learning rate by this after every round", above=0, at_most=1
    )
    momentum: float = setting(
        0.9, "momentum of local SGD", at_least=0, below=1, condition=With("optimizer", "sgd")
    )
    weight_decay: float = setting(5e-4, "weight decay of local training", at_least=0)
    proximal: float = setting(
        0.0, "pull towards the model that the round began with (FedProx's μ)", at_least=0
    )
    strength: float = setting(
        0.9,
        "strength of sparse training: share of the group lasso in the loss of the first batch",
        at_least=0,
        below=1,
    )
    beta: float = setting(
        1.0, "share of the local epochs before the pruning (β)", at_least=0, at_most=1
    )
    augmentation: bool = setting(False, "random crops and flips of training images")

    def in_round(self, number: int) -> Recipe:
        """The recipe of a worker's round, counted from 1, with the learning rate of that round."""
        if self.learning_rate_decay == 1:
            return self
        rate = self.learning_rate * self.learning_rate_decay ** (number - 1)
        return replace(self, learning_rate=rate)


# What goes to a worker and what comes back: the only words between server and worker.
#
# A worker is a function of its task. It knows neither the strategy that asked nor the engine that
# carried the question, so the same worker serves a simulation and a network.


@dataclass(frozen=True)
class Pruning:
    """The part of a task that tells a worker to prune."""

    rate: float
    """The pruned rate P: the fraction of the sub-model's parameters to cut."""
    order: str
    """The name of the pruning order."""
    importance: Tensor | None = None
    """Importance of every unit of the original model, where the server computes the order;
    None where the worker does, from its own data and weights."""
    min_retention: float = 0.0
    """The retention γ_min that the pruning must leave, even if the rate is missed by a unit."""
    width_multiple: int = 1
    """What the widths that the pruning leaves are multiples of."""


@dataclass(frozen=True)
class Task:
    """One round's work for one worker."""

    worker: int
    round: int
    """Counted from 1 for each worker; together with the seed it fixes the worker's randomness."""
    state: Mapping[str, Tensor]
    """The tensors of the worker's sub-model; cut from the global model when they are asked for,
    where a server has many tasks open."""
    kept: Kept
    recipe: Recipe
    pruning: Pruning | None = None
    lasso: float | None = None
    """The group lasso's λ for a worker that has found none yet; None where it is to find it."""
    carries_fractions: bool = False
    """Whether fractions of a step are carried over to the worker's next round, so that all its
    rounds together are as many epochs as they should be, however few batches an epoch is."""

    def steps(self, samples: int) -> int:
        """How many mini-batches a worker with so many samples trains on."""
        recipe = self.recipe
        if self.carries_fractions:
            return steps_of_round(samples, recipe.batch_size, recipe.epochs, self.round)
        return steps(samples, recipe.batch_size, recipe.epochs)


@dataclass(frozen=True)
class Cut:
    """What one pruning did, as the worker saw it."""

    importance_lost: float
    """Share of the sub-model's importance that was cut away."""
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Update:
    """What a worker gives back for a task."""

    worker: int
    round: int
    state: State
    kept: Kept
    samples: int
    """How many samples the worker holds: its weight in the aggregation."""
    loss: float
    """Mean training loss over the round, without the group lasso."""
    cut: Cut | None = None
    lasso: float | None = None
    """The group lasso's λ that the worker goes by; None if it has none."""


@dataclass(frozen=True)
class Timing:
    """Where the update time of one task went, in seconds of the engine's clock."""

    send: float
    train: float
    receive: float
    bytes_sent: int = 0
    bytes_received: int = 0

    @property
    def update_time(self) -> float:
        """The paper's φ."""
        return self.send + self.train + self.receive


@dataclass(frozen=True)
class Arrival:
    """An update as it reaches the server, with the time it took."""

    update: Update
    timing: Timing
