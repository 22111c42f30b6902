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
from adaptcl.engines.clock_summary import describe_clock, lopsided, whole_updates
from adaptcl.engines.environment import Environment
from adaptcl.engines.loop import Loop
from adaptcl.engines.simulation import SimulatedTransport, TaskOutcome
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished, Warned
from adaptcl.records import RoundRecord
from adaptcl.runs.files.sub_models import Savings
from adaptcl.runs.training_profile import measured_profile
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data
from adaptcl.strategies import Closed, Job, Strategy, strategy_class
from adaptcl.training import Task, Update
from adaptcl.training.objectives.metrics import Measure
from adaptcl.training.wire.encoding import model_size, update_size
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
    _refuse_measured_times(config)
    profile = None
    if config.environment.asks_for_measurement:
        check_model_and_data(workload, config.recipe.batch_size)
        profile = measured_profile(config, workload)
    config = profile.of(config) if profile else config
    samples = [len(part) for part in workload.worker_samples]
    return forecast(config, workload.units, samples, profile_measured=profile is not None)


def forecast(
    config: Config, units: UnitMap, samples: Sequence[int], *, profile_measured: bool = False
) -> Forecast:
    """Forecast the run of a configuration, for workers with these numbers of samples.

    `profile_measured` says whether its training profile was measured just now.

    Units are pruned in the order of their index: the time of a sub-model depends on how many units
    it keeps, and hardly on which.
    """
    _refuse_measured_times(config)
    with note_custom_code(config.named_methods):
        return _forecast(config, units, samples, profile_measured)


def _forecast(
    config: Config, units: UnitMap, samples: Sequence[int], profile_measured: bool
) -> Forecast:
    job = config.job
    environment = Environment(
        config.environment, units, job.workers, config.recipe.epochs, job.seed, samples
    )
    settings = config.strategy
    if config.pruning:
        settings = dataclasses.replace(settings, pruning="index")
    clock = (config.environment.time_noise, config.environment.is_steady)
    strategy = strategy_class(job.strategy)(
        Job(units, {}, job.workers, job.rounds, config.recipe, job.seed, *clock), settings
    )
    untrained = Untrained(units, samples, config.codecs)
    transport = SimulatedTransport(untrained, environment, job.workers, threads=1)
    observed = _Observed()
    # Only its time limit can be met where nothing is tested.
    stop_rule = config.stop_rule(Measure())
    Loop(strategy, transport, job.workers, Untested(), [observed], stop_rule).run()
    updates = whole_updates(environment, units, config.codecs)
    warnings = [environment.ignores_samples(), lopsided(updates), *observed.warnings]
    savings = Savings.of(units, strategy.sub_models())
    ends = [0.0, *(record.virtual_time_s for record in observed.records)]
    return Forecast(
        job.strategy,
        tuple(end - begin for begin, end in pairwise(ends)),
        tuple(record.heterogeneity for record in observed.records),
        savings.retention,
        savings.flops_saved,
        tuple(warning for warning in warnings if warning is not None),
        describe_clock(environment, updates, profile_measured=profile_measured),
    )


class Untrained:
    """Workers that prune as told but do not train."""

    def __init__(self, units: UnitMap, samples: Sequence[int], codecs: Codecs) -> None:
        self.units = units
        self._samples = samples
        self._codecs = codecs

    def task_bytes(self, task: Task) -> int:
        return _known(model_size(task, self.units, self._codecs.down))

    def expected_bytes(self, task: Task) -> int:
        return self._update_bytes(task, task.kept)

    def carry_out(self, task: Task, memory: WorkerMemory) -> TaskOutcome:
        kept = self._kept_after(task)
        update = Update(task.worker, task.round, {}, kept, self._samples[task.worker], loss=0.0)
        return TaskOutcome(update, self._update_bytes(task, kept), 0.0, memory)

    def _update_bytes(self, task: Task, kept: Kept) -> int:
        return _known(update_size(task, kept, self.units, self._codecs.up))

    def _kept_after(self, task: Task) -> Kept:
        pruning = task.pruning
        if pruning is None:
            return task.kept
        assert pruning.importance is not None
        return pruning.units_left(self.units, task.kept, pruning.importance)


class Untested:
    """An evaluator for runs without a model."""

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> None:
        return None


class _Observed:
    """A listener that keeps the records and warnings of a run."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.warnings: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundFinished):
            self.records.append(event.record)
        elif isinstance(event, Warned):
            self.warnings.append(event.message)


def _known(size: int | None) -> int:
    if size is None:
        raise _refusal("how many bytes its codec sends depends on what is learned")
    return size


def _refuse_measured_times(config: Config) -> None:
    if config.environment.training_time == "measured":
        raise _refusal("training_time is 'measured', so times are known only when they have passed")


def _refusal(reason: str) -> SettingError:
    """The error for times that cannot be known without training."""
    return SettingError(f"This run cannot be forecast: {reason}.")
