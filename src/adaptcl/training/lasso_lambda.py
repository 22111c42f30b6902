"""The choice of λ, the weight of the group lasso in the loss.

A user sets a strength s: the share of the penalty in the whole loss of a first batch, as in
PruneTrain. From this a worker finds its λ on the first batch of its first task (`lambda_of_batch`),
and keeps it. A worker that begins later takes the mean of the others, which the server sends with
its task (`FirstLambdas`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.storage import Tree
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.units import Kept, UnitMap


def lambda_of_batch(
    model: nn.Module,
    units: UnitMap,
    kept: Kept,
    samples: Samples,
    indexes: Tensor,
    strength: float,
    objective: Objective = CLASSIFICATION,
) -> float:
    """λ that makes the lasso the share s of the whole loss on a batch: s·loss / ((1 − s)·penalty).

    `indexes` are those of the batch's samples. Batch-norm statistics are restored, so the model
    does not change. A negative loss, such as of a likelihood, has no shares. Its size is no
    measure either: a constant added to the loss changes it, and nothing that is learned.
    """
    if strength == 0:
        return 0.0
    inputs, targets = samples.batch(indexes.to(samples.device))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    with torch.no_grad():
        outputs = objective.outputs(model, inputs, targets)
        loss = float(objective.mean_loss(outputs, targets))
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    if loss < 0:
        raise SettingError(
            f"strength is {strength:g}, the share of the group lasso in the loss of a first batch, "
            f"but that loss is negative ({loss:.3g}); add a constant to the loss that keeps it "
            "positive, or set strength = 0 to train without the group lasso."
        )
    penalty = GroupLasso(model, units, kept).penalty()
    return strength * loss / ((1 - strength) * penalty) if penalty else 0.0


class FirstLambdas:
    """The λ that workers found on the first model, for workers that start after the first round.

    A worker finds its λ from the loss on its first batch. On the first model all workers find about
    the same λ. A worker that starts in round 30 would see a model that is nearly trained, or that
    the lasso has already shrunk, and would find a λ several times too small or too large. So the
    server gives it the mean of what others found on the first model. Workers with equally many
    units count first, because a smaller sub-model has a smaller penalty.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}
        """By number of units: the sum of all λ, and how many workers found one."""

    def add(self, kept: Kept, found: float | None) -> None:
        """Note the λ of a worker that began with the first model; None if it reports none."""
        if found is not None:
            units = int(kept.sum())
            total, count = self._found.get(units, (0.0, 0))
            self._found[units] = (total + found, count + 1)

    def mean(self, kept: Kept) -> float | None:
        """The λ for a worker with these units that has none; None while nobody has found one."""
        if not self._found:
            return None
        same_size = self._found.get(int(kept.sum()))
        used = [same_size] if same_size else list(self._found.values())
        return math.fsum(total for total, _ in used) / sum(count for _, count in used)

    def snapshot(self) -> Tree:
        return [[units, *found] for units, found in self._found.items()]

    def restore(self, tree: Tree) -> None:
        self._found = {units: (total, count) for units, total, count in tree}
