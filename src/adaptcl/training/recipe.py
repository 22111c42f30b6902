"""The recipe: the settings of local training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adaptcl.settings import When, setting

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """Settings of local training, the same for every worker of a run.

    By default epochs, batch size, learning rate, weight decay and strength are the paper's for
    CIFAR-10 (its appendix). Its β is 1. It has no clipping, accumulation, schedule or FedProx.
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
