"""FedRolex: sub-models of fixed widths that roll over the model (Alam et al., 2022).

The widths are HeteroFL's, but the window of units moves by one unit a round and wraps around at the
end of each layer. So every unit is trained in narrow sub-models too, and the model may be wider
than any worker's sub-model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from adaptcl.records import WorkerRecord
from adaptcl.strategies.heterofl import WidthSettings, deal_widths, initial_windows, window
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous
from adaptcl.units import State


class FedRolex(Synchronous):
    """Each worker trains a window of every layer, which moves each round."""

    summary = "a sub-model of fixed width for each worker, other units every round"
    Settings: ClassVar[type[WidthSettings]] = WidthSettings

    def __init__(self, job: Job, settings: WidthSettings) -> None:
        super().__init__(job, settings)
        self.widths = deal_widths(settings, job.workers)
        self.kept = initial_windows(job.units, self.widths)

    def plan(self, worker: int) -> SubModelPlan:
        """The window of this round; in round 1 it begins at the first unit."""
        return SubModelPlan(window(self.units, self.widths[worker], first=self.round - 1))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        return self.warn_nothing_to_cut()

    def model(self) -> State:
        """The whole model: a unit outside all windows only waits for its turn."""
        return self.state
