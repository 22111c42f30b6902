"""The update time φ: how long a task takes from the server to the worker and back.

Algorithm 2 learns pruned rates from it, and a strategy gets it with every update.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.training.task import Update

TYPICAL_NOISE = 0.1
"""The relative spread assumed of update times on a real clock until it is measured: links and
processors are shared."""


@dataclass(frozen=True)
class Timing:
    """The update time φ of one task in seconds of the run's clock, and the bytes it took."""

    send: float
    train: float
    receive: float
    bytes_sent: int = 0
    bytes_received: int = 0
    begin: float = 0.0  # when the task was sent, in seconds of the run
    is_cold: bool = False
    """Whether the worker had just been restarted or had to be sent the task again, so that the time
    says little of its speed."""

    @property
    def update_time(self) -> float:
        """The paper's φ."""
        return self.send + self.train + self.receive


@dataclass(frozen=True)
class Arrival:
    """An update that has reached the server, with the time it took."""

    update: Update
    timing: Timing
