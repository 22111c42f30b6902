"""HeteroFL (Diao et al., 2020) and FedRolex (Alam et al., 2022): sub-models of fixed widths.

In HeteroFL a worker of width p holds the first ⌈p·n⌉ of the n units of every layer, so narrow
sub-models are contained in wide ones. Each unit is averaged over the workers that hold it. HeteroFL
needs each worker's width before the first round, when nothing is known about the workers; the
authors assign five levels. `worker_widths = "matched"` finds widths from measured times instead, as
AdaptCL does (`widths.py`).

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
from dataclasses import dataclass
from typing import ClassVar

from adaptcl.errors import SettingError
from adaptcl.records import WorkerRecord
from adaptcl.settings import When, refuse_other_count, setting
from adaptcl.strategies.strategy import Job
from adaptcl.strategies.synchronous import SubModelPlan, Synchronous
from adaptcl.strategies.widths import MatchedWidths, WidthSettings, window
from adaptcl.units import State

MATCHED = "matched"


@dataclass(frozen=True)
class HeteroFLSettings(WidthSettings):
    """Which worker trains a sub-model of which width."""

    width_levels: tuple[float, ...] = setting(
        (1.0, 0.5, 0.25, 0.125, 0.0625),
        "widths for equal groups of workers; the widest go to the last workers, which are the "
        "fastest in a simulation",
        above=0,
        at_most=1,
        condition=When(unused=["worker_widths"]),
    )
    worker_widths: tuple[float, ...] | str = setting(
        (),
        "width of each worker's sub-model as a share of every layer, instead of width_levels; "
        "matched makes all workers as fast as the fastest, from measured update times",
        above=0,
        at_most=1,
        choices=(MATCHED,),
    )


class HeteroFL(Synchronous):
    """Each worker trains the first units of every layer."""

    summary = "a sub-model of fixed width for each worker, always the same units"
    Settings: ClassVar[type[HeteroFLSettings]] = HeteroFLSettings
    unused: ClassVar[tuple[str, ...]] = (*Synchronous.unused, "strength")
    remembered: ClassVar[tuple[str, ...]] = (*Synchronous.remembered, "_matched")

    def __init__(self, job: Job, settings: HeteroFLSettings) -> None:
        super().__init__(job, settings)
        self._matched = MatchedWidths(job) if settings.worker_widths == MATCHED else None
        self._dealt = () if self._matched else deal_widths(settings, job.workers)
        # A worker that is never drawn keeps this sub-model.
        by_width = {width: window(job.units, width, first=0) for width in set(self._widths)}
        self.kept = [by_width[width] for width in self._widths]

    @property
    def _widths(self) -> Sequence[float]:
        return self._matched.widths if self._matched else self._dealt

    def plan(self, worker: int) -> SubModelPlan:
        return SubModelPlan(window(self.units, self._widths[worker], first=0))

    def learn(self, records: Sequence[WorkerRecord]) -> tuple[str, ...]:
        if self._matched:
            self._matched.learn(records, ahead=0)
        return self.warn_nothing_to_cut()


class FedRolex(HeteroFL):
    """Each worker trains a window of every layer, which moves each round."""

    summary = "a sub-model of fixed width for each worker, other units every round"

    def plan(self, worker: int) -> SubModelPlan:
        """The window of this round; in round 1 it begins at the first unit."""
        return SubModelPlan(window(self.units, self._widths[worker], first=self.round - 1))

    def model(self) -> State:
        """The whole model: a unit outside all windows only waits for its turn."""
        return self.state


def deal_widths(settings: HeteroFLSettings, workers: int) -> Sequence[float]:
    """The width of each worker's sub-model, from the slowest worker to the fastest."""
    given = settings.worker_widths
    if given and not isinstance(given, str):
        refuse_other_count(f"worker_widths has {len(given)} entries", len(given), workers)
        return given
    levels = sorted(settings.width_levels, reverse=True)
    if not levels:
        raise SettingError("width_levels is empty, but it must have at least one width.")
    # Dealt from the fastest on, so that the widest is used even with fewer workers than levels.
    return [levels[place * len(levels) // workers] for place in reversed(range(workers))]
