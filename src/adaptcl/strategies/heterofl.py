"""HeteroFL (Diao et al., 2020) and FedRolex (Alam et al., 2022): sub-models of fixed widths.

In HeteroFL a worker of width p holds the first ⌈p·n⌉ of the n units of every layer, so narrow
sub-models are contained in wide ones. Each unit is averaged over the workers that hold it. HeteroFL
needs each worker's width before the first round, when nothing is known about the workers; the
authors assign five levels. `worker_widths = "matched"` finds widths from measured times instead, as
AdaptCL does.

Training is plain, without the group lasso. Batch norm is *static*, as the authors call it: workers
normalise by their batches alone, as batch norm always does in training, and the statistics of the
model are measured on everybody's data when it is tested and delivered.

Left out:

- The scaler, which divides activations by p in training. It stands before a batch norm, which
  undoes it.
- The loss masked to the labels that a worker has, and their rows of the classifier averaged over
  these workers alone. It changes nothing while each worker has samples of every label, as with s =
  80, and otherwise the server would have to know everybody's labels.
- Clipping of gradients. It is no part of the method, and no other strategy here has it.

In FedRolex the window of units moves by one unit a round and wraps around at the end of each layer.
So every unit is trained in narrow sub-models too, and the model may be wider than any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from adaptcl.records import WorkerRecord
from adaptcl.storage import Tree
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous
from adaptcl.strategies.widths import Widths, WidthSettings, window
from adaptcl.units import State


class HeteroFL(Synchronous):
    """Each worker trains the first units of every layer."""

    summary = "a sub-model of fixed width for each worker, always the same units"
    Settings: ClassVar[type[WidthSettings]] = WidthSettings
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "strength")

    def __init__(self, job: Job, settings: WidthSettings) -> None:
        super().__init__(job.without_lasso(), settings)
        self.widths = Widths(settings, job)
        self.kept = self.widths.initial_windows(job.units)

    def plan(self, worker: int) -> SubModelPlan:
        return SubModelPlan(window(self.units, self.widths[worker], first=0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        self.widths.learn(records)
        return self.warn_nothing_to_cut()

    def snapshot(self) -> Tree:
        return {**super().snapshot(), "widths": self.widths.snapshot()}

    def restore(self, tree: Tree) -> None:
        super().restore(tree)
        self.widths.restore(tree["widths"])


class FedRolex(HeteroFL):
    """Each worker trains a window of every layer, which moves each round."""

    summary = "a sub-model of fixed width for each worker, other units every round"

    def plan(self, worker: int) -> SubModelPlan:
        """The window of this round; in round 1 it begins at the first unit."""
        return SubModelPlan(window(self.units, self.widths[worker], first=self.round - 1))

    def model(self) -> State:
        """The whole model: a unit outside all windows only waits for its turn."""
        return self.state
