"""Training on a worker, and the messages that it exchanges with the server."""

from adaptcl.training.task import Pruning, PruningCost, Recipe, Task, Update, WorkerTest
from adaptcl.training.update_time import Arrival, Timing

__all__ = ["Arrival", "Pruning", "PruningCost", "Recipe", "Task", "Timing", "Update", "WorkerTest"]
