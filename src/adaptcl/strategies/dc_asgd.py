"""DC-ASGD-a: workers commit gradients and the server corrects stale ones (Zheng et al., 2017).

A gradient g is computed on the model that a worker pulled, and the model has moved since. The
first-order correction needs the Hessian, which g⊙g approximates cheaply:

    θ ← θ − η (g + λ_t ⊙ g⊙g⊙(θ − θ_pulled)),   λ_t = λ0 / √(MeanSquare + ε),
    MeanSquare ← m·MeanSquare + (1 − m) g⊙g     (which is what the *-a*, adaptive, stands for).

The gradient of a worker that trains for some epochs is the mean over its steps:
g = (θ_pulled − θ_w) / (learning_rate · steps). The AdaptCL paper does not say whether it takes the
mean or the sum, but its parameter grid does. With the *sum*, η = 0.1 would add ten times the change
of each of ten workers and η = 0.01 all of it; VGG16 then diverged here in the first rounds, where
the paper reports 75 and 74 %. With the mean, halving the epochs of a commit doubles how far the
server moves in total, and in the paper accuracy rises with every halving (68, 74 and 79 %).

The method works best with small commits. So a round has `commit_epochs` epochs, and there are more
rounds in return. Every worker trains exactly as many steps as with any other strategy: where
`commit_epochs` does not divide the epochs of a run, commits are longer or shorter, and fractions of
a step are carried over to the next commit.

Buffers, such as the running statistics of norm layers, have no gradient, whatever their names; they
are mixed as in SSP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from adaptcl.errors import SettingError
from adaptcl.settings import setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, mix_measured
from adaptcl.strategies.strategy import Job
from adaptcl.training import Task, Update
from adaptcl.units import State

_EPSILON = 1e-7  # keeps λ_t finite where a parameter has had no gradient yet


@dataclass(frozen=True)
class DCASGDSettings(AsynchronousSettings):
    """How stale gradients are corrected, and how often workers commit."""

    lambda_0: float = setting(2.0, "how strongly stale gradients are corrected (λ0)", at_least=0)
    mean_square_decay: float = setting(
        0.95, "decay of the mean square of past gradients (m)", at_least=0, below=1
    )
    dc_learning_rate: float = setting(
        0.0, "learning rate of the server (η); 0 takes the workers' learning_rate", at_least=0
    )
    commit_epochs: float = setting(
        0.5,
        "local epochs between commits, instead of epochs; the number of rounds grows so that each "
        "worker trains as many epochs in all; where they are no whole number of commits, commits "
        "are longer or shorter",
        above=0,
        at_most=1000,
    )


def _commits(rounds: int, epochs: float, commit_epochs: float) -> int:
    """How many commits come nearest to as many epochs as these rounds."""
    return max(1, round(rounds * epochs / commit_epochs))


def planned_rounds(settings: Mapping[str, Any]) -> int:
    """How many rounds a run with these settings counts, whatever its strategy."""
    rounds: int = settings["rounds"]
    if "commit_epochs" not in settings:
        return rounds
    return _commits(rounds, settings["epochs"], settings["commit_epochs"])


class DCASGD(Asynchronous):
    """DC-ASGD-a with sparse training."""

    summary = "whole model for everybody, sparse training; corrects stale gradients as they come"
    Settings: ClassVar[type[DCASGDSettings]] = DCASGDSettings
    settings: DCASGDSettings
    remembered: ClassVar[tuple[str, ...]] = (*Asynchronous.remembered, "_mean_square")
    carries_fractions: ClassVar[bool] = True

    def __init__(self, job: Job, settings: DCASGDSettings) -> None:
        if job.recipe.optimizer != "sgd":
            raise SettingError(
                "DC-ASGD-a computes gradients from what SGD changed, so its optimizer must be "
                f"'sgd', not {job.recipe.optimizer!r}."
            )
        rounds = _commits(job.rounds, job.recipe.epochs, settings.commit_epochs)
        epochs = job.rounds * job.recipe.epochs / rounds
        decay = job.recipe.learning_rate_decay ** (epochs / job.recipe.epochs)
        recipe = replace(job.recipe, epochs=epochs, learning_rate_decay=decay)
        super().__init__(replace(job, rounds=rounds, recipe=recipe), settings)
        self._rounds_set = job.rounds
        self._mean_square: State = {
            name: torch.zeros_like(tensor)
            for name, tensor in job.state.items()
            if tensor.is_floating_point() and name not in self.units.buffers
        }

    def schedule_round(self, round: int) -> int | None:
        """The round that has begun, of those that the user has set."""
        return (round - 1) * self._rounds_set // self.rounds + 1

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        """Take a step along the gradient, corrected for how far the model has moved."""
        settings, recipe = self.settings, self.job.recipe.in_round(task.round)
        # The last step of a commit may have fewer mini-batches.
        steps = math.ceil(task.mini_batch_count(update.samples) / recipe.accumulation)
        # A commit without a step holds only what a codec still had to send.
        length = recipe.learning_rate * max(1, steps)
        server_step = settings.dc_learning_rate or recipe.learning_rate
        measured = {n: tensor for n, tensor in self.state.items() if n not in self._mean_square}
        state = {**self.state, **mix_measured(measured, update.state, 1 / self.job.workers)}
        for name, mean_square in self._mean_square.items():
            gradient = (task.state[name] - update.state[name]) / length
            square = gradient.square()
            mean_square = torch.lerp(square, mean_square, settings.mean_square_decay)
            lambda_t = settings.lambda_0 / (mean_square + _EPSILON).sqrt()
            drift = self.state[name] - task.state[name]
            step = gradient + lambda_t * square * drift
            state[name] = torch.sub(self.state[name], step, alpha=server_step)
            self._mean_square[name] = mean_square
        self.state = state
