"""FedRolex: sub-models of fixed widths that roll over the model (Alam et al., 2022).

Widths, plain training and static batch norm are HeteroFL's, but the window of units moves by one
unit a round and wraps around at the end of each layer. So every unit is trained in narrow
sub-models too, and the model may be wider than any worker's sub-model.
"""

from __future__ import annotations

from adaptcl.strategies.heterofl import HeteroFL
from adaptcl.strategies.synchronous import SubModelPlan
from adaptcl.strategies.widths import window
from adaptcl.units import State


class FedRolex(HeteroFL):
    """Each worker trains a window of every layer, which moves each round."""

    summary = "a sub-model of fixed width for each worker, other units every round"

    def plan(self, worker: int) -> SubModelPlan:
        """The window of this round; in round 1 it begins at the first unit."""
        return SubModelPlan(window(self.units, self.widths[worker], first=self.round - 1))

    def model(self) -> State:
        """The whole model: a unit outside all windows only waits for its turn."""
        return self.state
