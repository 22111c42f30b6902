"""SSP: workers run ahead of the slowest, but only so far (Ho et al., 2013).

A worker may begin its next round while it leads the slowest by at most s finished rounds;
otherwise it waits until the slowest has caught up. s = 0 is the barrier of FedAVG, an s of all
rounds is no barrier at all. Each change is merged with the coefficient 1/W, so that W changes to
the same model add up to the average of the models: with s = 0 and equal parts of data that is what
FedAVG gives, where it averages running variances as they are (`bn_variance="variance"`). (The
coefficient is the paper's; unlike FedAVG's it does not look at how many samples a worker holds.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptcl.settings import setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, add_change
from adaptcl.strategies.strategy import Job, Reaction
from adaptcl.training import Task, Update


@dataclass(frozen=True)
class SSPSettings(AsynchronousSettings):
    """Settings of SSP."""

    staleness_threshold: int = setting(
        2,
        "number of rounds a worker may be ahead of the slowest (s); 0 waits for all workers",
        at_least=0,
    )


class SSP(Asynchronous):
    """SSP with sparse training."""

    summary = "whole model for everybody, sparse training; waits when too far ahead"
    Settings: ClassVar[type[SSPSettings]] = SSPSettings

    def __init__(self, job: Job, settings: SSPSettings) -> None:
        super().__init__(job, settings)
        self.settings = settings
        self._slowest = 0
        """Rounds that the slowest worker has finished, when tasks were last given out."""

    def may_go(self, worker: int) -> bool:
        """Whether the worker's lead over the slowest is within the threshold."""
        return self.done[worker] - self._slowest <= self.settings.staleness_threshold

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        """Add the worker's change, a W-th of it."""
        self.state = add_change(self.state, update.state, task.state, 1 / self.job.workers)

    def _release(self) -> tuple[Task, ...]:
        # Looked up once and not for every worker that waits: of a thousand, hundreds may.
        here = zip(self.done, self._present, strict=True)
        self._slowest = min((done for done, present in here if present), default=0)
        return super()._release()

    def joined(self, worker: int) -> Reaction:
        """Let a worker come back beside the slowest.

        Were it to make up for all the rounds it missed, everybody would have to wait for it.
        """
        others = [
            done for other, done in enumerate(self.done) if self._present[other] and other != worker
        ]
        self.done[worker] = max(self.done[worker], min(others, default=0))
        return super().joined(worker)
