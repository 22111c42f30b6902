"""What a worker does, and the words it exchanges with the server."""

from adaptcl.training.task import Arrival, Cut, Pruning, Recipe, Task, Timing, Update

__all__ = ["Arrival", "Cut", "Pruning", "Recipe", "Task", "Timing", "Update"]
