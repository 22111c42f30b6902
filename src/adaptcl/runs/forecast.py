"""Forecasts how long a run would take, by a simulation that trains nothing.

On the virtual clock, times follow from sizes, bandwidths and a training profile, and pruned rates
follow from times. None of it depends on what is learned. So the loop, the strategy and the
environment are the real ones, and only the training is left out: tasks and updates have a size but
no tensors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from adaptcl.codecs.codec import Codecs
from adaptcl.config.config import Config
from adaptcl.custom import note_custom_code
from adaptcl.engines.loop import Loop
from adaptcl.engines.simulation import LocalWorkers, SimulatedTransport, TaskOutcome
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished, Warned
from adaptcl.records import RoundRecord
from adaptcl.runs.files.sub_models import Savings
from adaptcl.runs.session import job_of
from adaptcl.runs.simulated_session import clock_of
from adaptcl.runs.training_profile import with_measured_profile
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data
from adaptcl.strategies import Closed, Strategy, strategy_class
from adaptcl.training import Task, Update
from adaptcl.training.objectives.metrics import Measure
from adaptcl.training.wire import encoded_size
from adaptcl.training.worker import WorkerMemory
from adaptcl.units import Kept, UnitMap


@dataclass(frozen=True)
class Forecast:
    """The virtual times and sub-models that a run would have."""

    strategy: str
    round_times_s: tuple[float, ...]
    heterogeneity: tuple[float | None, ...]
    """Round by round; None while not all workers have an update time."""
    retention: tuple[float, ...]  # each worker's at the end
    flops_saved: float  # the share of all workers' FLOPs that pruning saves in the end
    warnings: tuple[str, ...] = ()
    """The warnings of the run, as far as they do not depend on training."""
    clock: str = ""  # what the clock assumes

    @property
    def virtual_time_s(self) -> float:
        return math.fsum(self.round_times_s)


def forecast_workload(config: Config, workload: Workload) -> Forecast:
    """Forecast the run of a configuration on a model and data; training is measured if it asks."""
    if config.environment.asks_for_measurement:
        check_model_and_data(workload, config.recipe.batch_size)
    config, source = with_measured_profile(config, workload)
    samples = [len(part) for part in workload.worker_samples]
    return forecast(config, workload.units, samples, source)


def forecast(config: Config, units: UnitMap, samples: Sequence[int], source: str = "") -> Forecast:
    """Forecast the run of a configuration, for workers with these numbers of samples.

    `source` says how its training times are known; empty if they were given.

    Units are pruned in the order of their index: the time of a sub-model depends on how many units
    it keeps, and hardly on which.
    """
    with note_custom_code(config.named_methods):
        clock = clock_of(config, units, samples, source)
        settings, job = config.strategy, config.job
        if config.pruning:
            settings = dataclasses.replace(settings, pruning="index")
        noise, is_steady = config.environment.jitter, config.environment.is_steady
        begun = job_of(config, units, {}, noise, is_steady=is_steady)
        strategy = strategy_class(job.strategy)(begun, settings)
        untrained = Untrained(units, samples, config.codecs)
        transport = SimulatedTransport(untrained, clock.environment, job.workers, threads=1)
        records, warnings = list[RoundRecord](), list(clock.warnings)

        def observe(event: Event) -> None:
            if isinstance(event, RoundFinished):
                records.append(event.record)
            elif isinstance(event, Warned):
                warnings.append(event.message)

        # Only its time limit can be met where nothing is tested.
        stop_rule = config.stop_rule(Measure())
        Loop(strategy, transport, job.workers, Untested(), [observe], stop_rule).run()
        savings = Savings.of(units, strategy.sub_models())
    ends = [0.0, *(record.virtual_time_s for record in records)]
    return Forecast(
        strategy=job.strategy,
        round_times_s=tuple(end - begin for begin, end in pairwise(ends)),
        heterogeneity=tuple(record.heterogeneity for record in records),
        retention=savings.retention,
        flops_saved=savings.flops_saved,
        warnings=tuple(warnings),
        clock=clock.assumes,
    )


class Untrained(LocalWorkers):
    """Workers that prune as told but do not train."""

    def __init__(self, units: UnitMap, samples: Sequence[int], codecs: Codecs) -> None:
        super().__init__((), units, codecs)
        self._samples = samples

    def task_bytes(self, task: Task) -> int:
        return _known(encoded_size(task, task.kept, self.units, self.codecs.down))

    def update_bytes(self, task: Task, kept: Kept) -> int:
        return _known(super().update_bytes(task, kept))

    def train(self, task: Task, memory: WorkerMemory) -> TaskOutcome:
        kept, pruning = task.kept, task.pruning
        if pruning is not None:
            assert pruning.importance is not None
            kept = pruning.units_left(self.units, kept, pruning.importance)
        update = Update(task.worker, task.round, {}, kept, self._samples[task.worker], loss=0.0)
        return TaskOutcome(update, self.update_bytes(task, kept), memory)


class Untested:
    """An evaluator for runs without a model."""

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> None:
        return None


def _known(size: int | None) -> int:
    if size is None:
        raise SettingError(
            "This run cannot be forecast: how many bytes its codec sends depends on what is "
            "learned."
        )
    return size
