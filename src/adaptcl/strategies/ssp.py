"""SSP: workers may run ahead of the slowest by a limited number of rounds (Ho et al., 2013).

A worker may begin its next round while it leads the slowest by at most s finished rounds.
Otherwise it waits until the slowest has caught up. With s = 0 this is FedAVG's barrier, with s as
large as the number of rounds there is no barrier.

The AdaptCL paper sets "the aggregation coefficient" to 1/W, which can be read in two ways:

- *change*: 1/W of a worker's change is added, as SSP's authors add updates to the parameters. W
  changes to the same model add up to the average of the models. With s = 0 and equally much data
  for each worker this is FedAVG, except for running statistics.
- *model*: 1/W of a worker's model is mixed into the global one, as in FedAsync. A round then moves
  the model less far: with s = 0 about a third of the old model stays.

Unlike FedAVG's weights, 1/W does not depend on how many samples a worker holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptcl.settings import setting
from adaptcl.strategies.asynchronous import Asynchronous, AsynchronousSettings, add_change, mix
from adaptcl.training import Task, Update


@dataclass(frozen=True)
class SSPSettings(AsynchronousSettings):
    """How far a worker may be ahead, and what of its update is merged."""

    staleness_threshold: int = setting(
        2,
        "number of rounds a worker may be ahead of the slowest (s); 0 waits for all workers",
        at_least=0,
    )
    ssp_merging: str = setting(
        "change",
        "what is merged with the coefficient 1/W: change adds the worker's change, model mixes its "
        "model with the global one",
        choices=("change", "model"),
    )


class SSP(Asynchronous):
    """SSP with sparse training."""

    summary = "whole model for everybody, sparse training; waits when too far ahead"
    Settings: ClassVar[type[SSPSettings]] = SSPSettings
    settings: SSPSettings

    def may_go(self, worker: int) -> bool:
        return self.done[worker] - self.slowest <= self.settings.staleness_threshold

    def merge(self, update: Update, task: Task, staleness: int) -> None:
        weight = 1 / self.job.workers
        if self.settings.ssp_merging == "model":
            self.state = mix(self.state, update.state, weight)
        else:
            self.state = add_change(
                self.state, update.state, task.state, weight, self.units.buffers
            )

    def returned(self, worker: int) -> None:
        """Let a worker come back level with the slowest.

        If it had to catch up on all the rounds it missed, everybody would wait for it.
        """
        others = (done for other, done in enumerate(self.done) if self.is_present(other))
        self.done[worker] = max(self.done[worker], min(others, default=0))
