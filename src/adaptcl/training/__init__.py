"""Training on a worker, and the messages that it exchanges with the server."""

from adaptcl.training.task import Arrival, Cut, Pruning, Recipe, Task, Timing, Update, WorkerTest

__all__ = ["Arrival", "Cut", "Pruning", "Recipe", "Task", "Timing", "Update", "WorkerTest"]
