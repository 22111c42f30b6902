"""What runs of all kinds are put together from: a strategy, and the clock of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.config import Config
from adaptcl.engines.clock_in_words import describe_clock, lopsided, whole_updates
from adaptcl.engines.environment import Environment
from adaptcl.errors import SettingError
from adaptcl.runs.evaluator import refuse_tests_at_the_server
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data, try_optimizer
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.training.optimizers import (
    OptimizerFactory,
    Schedule,
    find_optimizer,
    find_schedule,
)
from adaptcl.units import State, UnitMap


def checked_strategy(
    config: Config, workload: Workload, time_noise: float, *, is_steady: bool = False
) -> Strategy:
    """The strategy of a run; an error if it, the model and the data do not go together."""
    if workload.tested_by_workers:
        refuse_tests_at_the_server(config)
    check_model_and_data(workload, config.recipe.batch_size)
    try_optimizer(workload.model, config.recipe, *custom_optimizer_of(config, workload))
    if config.recipe.augmentation and workload.objective.targets == "classes":
        raise SettingError("augmentation moves images but not their targets; switch it off.")
    state = {k: v.detach().clone() for k, v in workload.model.state_dict().items()}
    job = job_of(config, workload.units, state, time_noise, is_steady=is_steady)
    return strategy_class(config.job.strategy)(job, config.strategy)


def job_of(
    config: Config, units: UnitMap, state: State, time_noise: float, *, is_steady: bool
) -> Job:
    """What the strategy of a run starts from."""
    return Job(
        units=units,
        state=state,
        workers=config.job.workers,
        rounds=config.job.rounds,
        recipe=config.recipe,
        seed=config.job.seed,
        time_noise=time_noise,
        is_steady=is_steady,
    )


def custom_optimizer_of(
    config: Config, workload: Workload
) -> tuple[OptimizerFactory | None, Schedule | None]:
    """The user's optimizer and schedule, if there are any."""
    return (
        workload.custom_optimizer or find_optimizer(config.recipe.optimizer),
        workload.schedule or find_schedule(config.recipe.schedule),
    )


@dataclass(frozen=True)
class Clock:
    """How long everything takes in a simulation, and what to tell the user of it."""

    environment: Environment
    assumes: str
    warnings: tuple[str, ...]


def clock_of(
    config: Config, units: UnitMap, samples: Sequence[int], *, profile_measured: bool
) -> Clock:
    """The clock of a run whose workers have these numbers of samples.

    `profile_measured` says whether its training profile was measured just now.
    """
    job, epochs = config.job, config.recipe.epochs
    environment = Environment(config.environment, units, job.workers, epochs, job.seed, samples)
    updates = whole_updates(environment, units, config.codecs)
    warnings = (environment.ignores_samples(), lopsided(updates))
    return Clock(
        environment,
        describe_clock(environment, updates, profile_measured=profile_measured),
        tuple(warning for warning in warnings if warning),
    )
