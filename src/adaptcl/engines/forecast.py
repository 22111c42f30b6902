"""How long a run would take, in seconds instead of hours: everything happens but the training.

On the virtual clock times follow from sizes, bandwidths and a profile of training, and pruned rates
follow from times. None of it depends on what is learned. So strategy and environment are the real
ones here, and only the models are left out: what travels has its size, but no tensors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.config import Config
from adaptcl.custom import telling_whose
from adaptcl.engines.environment import Environment
from adaptcl.engines.heterogeneity import of_those_present
from adaptcl.engines.loop import Deadline
from adaptcl.errors import SettingError
from adaptcl.pruning import prune
from adaptcl.strategies import Job, Reaction, strategy_class
from adaptcl.training import Arrival, Task, Update
from adaptcl.units import Kept, UnitMap, flops, retention, size_bytes


@dataclass(frozen=True)
class Forecast:
    """The clock of a run that was not made."""

    strategy: str
    round_times_s: tuple[float, ...]
    """How long each round takes."""
    heterogeneity: tuple[float | None, ...]
    """Of the update times, round by round; None while not all workers have one."""
    retention: tuple[float, ...]
    """Each worker's at the end."""
    flops_saved: float
    """The share of all workers' FLOPs that pruning has saved in the end."""
    warnings: tuple[str, ...] = ()
    """What the run would warn of, as far as it does not depend on training."""

    @property
    def virtual_time_s(self) -> float:
        """How long all rounds take."""
        return math.fsum(self.round_times_s)


def forecast(config: Config, units: UnitMap, samples: Sequence[int]) -> Forecast:
    """Work out the run that the configuration describes, for workers with so many samples each.

    Units are pruned in the order of their index: how long a sub-model takes depends on how many
    units are left, and hardly on which.
    """
    _refuse(config)
    with telling_whose(config.named_methods):
        return _Clock(config, units, samples).run()


class _Clock:
    def __init__(self, config: Config, units: UnitMap, samples: Sequence[int]) -> None:
        job = config.job
        own = config.strategy
        if any(field.name == "pruning" for field in dataclasses.fields(own)):
            own = dataclasses.replace(own, pruning="index")
        self._name = job.strategy
        self._units = units
        self._samples = samples
        self._environment = Environment(
            config.environment, units, job.workers, config.recipe.epochs, job.seed, samples
        )
        self._strategy = strategy_class(job.strategy)(
            Job(
                units,
                {},
                job.workers,
                job.rounds,
                config.recipe,
                job.seed,
                config.environment.time_noise,
            ),
            own,
        )
        self._now = 0.0
        self._deadline = Deadline()
        self._under_way: dict[int, tuple[float, Task, Arrival]] = {}
        self._ends: list[float] = []
        self._update_times = [0.0] * job.workers
        self._unequal: list[float | None] = []
        sentence = self._environment.ignores_samples()
        self._warnings: list[str] = [] if sentence is None else [sentence]

    def run(self) -> Forecast:
        self._act(self._strategy.start())
        while not self._strategy.finished:
            self._act(self._next())
        begins = [0.0, *self._ends]
        left = self._strategy.sub_models()
        work = [flops(self._units, each) for each in left]
        whole = flops(self._units, self._units.everything())  # 0 where none can be counted
        return Forecast(
            self._name,
            tuple(end - begin for begin, end in zip(begins, self._ends, strict=False)),
            tuple(self._unequal),
            tuple(retention(self._units, each) for each in left),
            1 - sum(work) / whole / len(work) if whole else 0.0,
            tuple(self._warnings),
        )

    def _next(self) -> Reaction:
        first = min(self._under_way, key=lambda worker: self._under_way[worker][0], default=None)
        if first is None or self._under_way[first][0] > self._deadline.at:
            self._now = self._deadline.at
            self._deadline.clear()
            return self._strategy.expired()
        self._now, task, arrival = self._under_way.pop(first)
        self._update_times[task.worker] = arrival.timing.update_time
        return self._strategy.receive(arrival)

    def _act(self, reaction: Reaction) -> None:
        for task in reaction.tasks:
            self._deliver(task)
        self._deadline.follow(reaction, self._now)
        if reaction.closed is not None:
            self._ends.append(self._now)
            asked = reaction.closed.participants or range(len(self._update_times))
            self._unequal.append(of_those_present(self._update_times, asked, away=()))
            self._warnings += reaction.closed.warnings

    def _deliver(self, task: Task) -> None:
        after = self._after(task)
        sent, received = (size_bytes(self._units, kept) for kept in (task.kept, after))
        timing = self._environment.timing(task, after, self._now, sent, received, 0.0)
        samples = self._samples[task.worker]
        update = Update(task.worker, task.round, {}, after, samples, loss=0.0)
        arrival = Arrival(update, timing)
        self._under_way[task.worker] = self._now + timing.update_time, task, arrival

    def _after(self, task: Task) -> Kept:
        """The units that a worker keeps when it has done what it was told."""
        told = task.pruning
        if told is None:
            return task.kept
        assert told.importance is not None
        return prune(
            self._units,
            task.kept,
            told.importance,
            told.rate,
            told.min_retention,
            told.width_multiple,
        )


def _refuse(config: Config) -> None:
    """An error if the clock depends on more than can be known beforehand."""
    reason = None
    if config.environment.training_time == "measured":
        reason = "training_time is 'measured', so times are known only when they have passed"
    elif config.environment.trace:
        reason = "there is a trace, by which workers come, go and change"
    elif config.job.codec != "plain":
        reason = f"codec is {config.job.codec!r}, and only what 'plain' sends is worked out"
    elif getattr(config.strategy, "adapt_strength", False):
        reason = "adapt_strength prunes when the group lasso has done its work"
    if reason is not None:
        raise SettingError(f"This run cannot be forecast: {reason}.")
