"""Open tasks in a checkpoint: a task as a tree and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from adaptcl.snapshot import Tree
from adaptcl.training import Pruning, Recipe, Task
from adaptcl.units import Kept


def task_to_tree(task: Task, with_state: bool) -> Tree:
    """A task for a checkpoint; without its tensors where they can be cut again."""
    pruning = task.pruning
    return {
        "worker": task.worker,
        "round": task.round,
        "kept": task.kept,
        "lasso_scale": task.lasso_scale,
        "lasso": task.lasso,
        "carries_fractions": task.carries_fractions,
        "pruning": None
        if pruning is None
        else {
            "rate": pruning.rate,
            "order": pruning.order,
            "importance": pruning.importance,
            "min_retention": pruning.min_retention,
            "width_multiple": pruning.width_multiple,
        },
        "state": dict(task.state) if with_state else None,
    }


def task_from_tree(tree: Tree, recipe: Recipe, cut: Callable[[Kept], Mapping[str, Tensor]]) -> Task:
    """The task as it was given; `cut` makes the tensors that were left out."""
    pruning = tree["pruning"]
    return Task(
        worker=tree["worker"],
        round=tree["round"],
        state=tree["state"] if tree["state"] is not None else cut(tree["kept"]),
        kept=tree["kept"],
        recipe=recipe,
        pruning=None if pruning is None else Pruning(**pruning),
        lasso_scale=tree["lasso_scale"],
        lasso=tree["lasso"],
        carries_fractions=tree["carries_fractions"],
    )
