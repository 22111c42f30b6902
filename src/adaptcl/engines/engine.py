"""What an engine is: something that runs a strategy to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from adaptcl.snapshot import Tree


class Engine(Protocol):
    """Delivers a strategy's tasks, hands it what arrives, and keeps the clock."""

    def run(self, checkpoint: Callable[[Tree], None], resume: Tree | None = None) -> None:
        """Run to the end; `checkpoint` gets all that is needed to go on after every round."""
        ...
