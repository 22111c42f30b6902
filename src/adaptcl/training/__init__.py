"""Training on a worker, and the messages that it exchanges with the server."""

from adaptcl.training.task import (
    Arrival,
    Pruning,
    PruningCost,
    Recipe,
    Task,
    Timing,
    Update,
    WorkerTest,
)

__all__ = ["Arrival", "Pruning", "PruningCost", "Recipe", "Task", "Timing", "Update", "WorkerTest"]
