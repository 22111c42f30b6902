"""What server and worker exchange: a task out, an update back.

A worker is a function of its task and its memory. It knows neither the strategy that chose the
task nor the transport that brought it, so the same worker serves a simulation and a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from adaptcl.pruning import prune
from adaptcl.settings import When, setting
from adaptcl.training.batches import mini_batch_count, mini_batch_count_of_round
from adaptcl.units import Kept, State, UnitMap

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """Settings of local training, the same for every worker of a run.

    Without a preset, epochs, batch size, learning rate, weight decay and strength are the paper's
    for CIFAR-10 (its appendix). The default job's preset has others. The paper has β = 1, and no
    clipping, accumulation, schedule or FedProx.
    """

    epochs: float = setting(
        2.0, "local epochs per round (E); fractions are allowed", above=0, at_most=1000
    )
    batch_size: int = setting(64, "samples per mini-batch", at_least=1)
    optimizer: str = setting(
        "sgd", "the optimizer of local training", choices=OPTIMIZERS, or_custom=True
    )
    learning_rate: float = setting(0.01, "learning rate of local training", above=0)
    learning_rate_decay: float = setting(
        1.0, "multiply the learning rate by this after every round", above=0, at_most=1
    )
    schedule: str = setting(
        "",
        "your own schedule as package.module:function; it gives the factor of the learning rate "
        "for a round, counted from 1",
    )
    momentum: float = setting(
        0.9, "momentum of local SGD", at_least=0, below=1, condition=When({"optimizer": "sgd"})
    )
    weight_decay: float = setting(5e-4, "weight decay of local training", at_least=0)
    clip_norm: float = setting(
        0.0, "scale gradients down to this norm; 0 leaves them as they are", at_least=0
    )
    accumulation: int = setting(
        1, "mini-batches whose gradients are averaged into one step", at_least=1
    )
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
        0.0,
        "share of the local epochs before the pruning (β); with 1 (the paper) a sub-model is cut "
        "after training and merged without further training",
        at_least=0,
        at_most=1,
    )
    augmentation: bool = setting(False, "random crops and flips of training images")

    def in_round(self, number: int) -> Recipe:
        """The recipe with the learning rate of a worker's round, counted from 1."""
        if self.learning_rate_decay == 1:
            return self
        rate = self.learning_rate * self.learning_rate_decay ** (number - 1)
        return replace(self, learning_rate=rate)


@dataclass(frozen=True)
class Pruning:
    """Tells a worker to prune its sub-model."""

    rate: float  # the pruned rate P: the share of the sub-model's parameters to cut
    order: str  # the name of the pruning order
    importance: Tensor | None = None
    """Importance of every unit of the global model, if the server computes the order; None if the
    worker does, from its data and weights."""
    min_retention: float = 0.0
    """The retention γ_min that must stay, even if the rate is missed by a unit."""
    width_multiple: int = 1  # the widths that the pruning leaves are multiples of this

    def units_left(self, units: UnitMap, kept: Kept, importance: Tensor) -> Kept:
        """The units that stay of those kept, in the order of this importance."""
        return prune(units, kept, importance, self.rate, self.min_retention, self.width_multiple)


@dataclass(frozen=True)
class Task:
    """One round's work for one worker."""

    worker: int
    round: int
    """The round of the run; without a barrier, the worker's own. With the seed it fixes what the
    worker draws."""
    state: Mapping[str, Tensor]
    """The tensors of the worker's sub-model. A server with many open tasks cuts them from the
    global model on demand."""
    kept: Kept
    recipe: Recipe
    pruning: Pruning | None = None
    lasso_lambda: float | None = None
    """The group lasso's λ for a worker that has none yet; None if the worker is to find it."""
    is_sparse: bool = True
    """Whether the worker trains with the group lasso. Where it does not, it still finds its λ, for
    later rounds (`lasso_lambda.py`)."""
    carries_fractions: bool = False
    """Whether fractions of a mini-batch are carried to the worker's next round, so that its rounds
    add up to the right number of epochs even if an epoch has few batches."""
    schedule_round: int | None = None
    """The round that a schedule of the learning rate is asked for; None if it is `round`. They
    differ where a strategy divides the rounds that a user has set."""
    only_tests: bool = False  # whether the worker tests the model and sends it back as it is

    def mini_batch_count(self, samples: int) -> int:
        """How many mini-batches a worker with this many samples trains on."""
        recipe = self.recipe
        if self.carries_fractions:
            return mini_batch_count_of_round(samples, recipe.batch_size, recipe.epochs, self.round)
        return mini_batch_count(samples, recipe.batch_size, recipe.epochs)


@dataclass(frozen=True)
class PruningCost:
    """What a pruning cost, measured by the worker."""

    importance_lost: float  # the share of the sub-model's importance that was cut away
    loss_before: float  # just before the pruning
    loss_after: float
    """At the end of the round. Right after a pruning it would say little: the rest of the round
    mends most of the harm, and the running statistics of batch norm are still those of the larger
    model."""


@dataclass(frozen=True)
class WorkerTest:
    """What a worker found when it tested a model on the samples that it holds back."""

    samples: int  # how many they are: its weight among the tests of all workers
    loss: float | None  # the mean; None if it is not finite
    metrics: Mapping[str, float | None]
    """By name; None for one that is not finite, such as R² of equal targets."""


@dataclass(frozen=True)
class Update:
    """A worker's answer to a task."""

    worker: int
    round: int
    state: State
    kept: Kept
    samples: int  # how many samples the worker has: its weight in the aggregation
    loss: float  # mean training loss over the round, without the group lasso
    pruning_cost: PruningCost | None = None
    importance: Tensor | None = None
    """Importance of every unit of the global model, by which the worker pruned if it computed the
    order."""
    lasso_lambda: float | None = None  # the group lasso's λ of the worker; None if it has none
    test: WorkerTest | None = None
    """Of the model that came with the task, before training; None if the worker tests nothing."""
    seconds: float = 0.0  # how long the worker says that the task took it
