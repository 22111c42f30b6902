"""How a worker trains: the numbers of local training, the same for every worker of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adaptcl.conditions import With
from adaptcl.settings import setting

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """Settings of local training (Sec. III-B and the configurations of the paper's appendix)."""

    epochs: float = setting(
        2.0, "local epochs a round (E); fractions are allowed", above=0, at_most=1000
    )
    batch_size: int = setting(64, "samples a mini-batch", at_least=1)
    optimizer: str = setting("sgd", "the optimizer of local training", choices=OPTIMIZERS)
    learning_rate: float = setting(0.01, "learning rate of local training", above=0)
    learning_rate_decay: float = setting(
        1.0, "factor of the learning rate from one round to the next", above=0, at_most=1
    )
    momentum: float = setting(
        0.9, "momentum of local SGD", at_least=0, below=1, condition=With("optimizer", "sgd")
    )
    weight_decay: float = setting(5e-4, "weight decay of local training", at_least=0)
    proximal: float = setting(
        0.0, "pull back to the model that a round began with (FedProx's μ)", at_least=0
    )
    strength: float = setting(
        0.9,
        "sparsification strength: the group lasso's share of the loss on the first batch",
        at_least=0,
        below=1,
    )
    beta: float = setting(
        1.0, "share of the local epochs that come before the pruning (β)", at_least=0, at_most=1
    )
    augmentation: bool = setting(False, "random crops and flips of training images")

    def in_round(self, number: int) -> Recipe:
        """The recipe of a worker's round, counted from 1, with the learning rate of that round."""
        if self.learning_rate_decay == 1:
            return self
        rate = self.learning_rate * self.learning_rate_decay ** (number - 1)
        return replace(self, learning_rate=rate)
