"""The strategy that a run begins with, once all that the user chose is found to go together."""

from __future__ import annotations

from adaptcl.config import Config
from adaptcl.errors import SettingError
from adaptcl.runs.evaluator import refuse_tests_at_the_server
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data, try_optimizer
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.training.optimizers import OptimizerFactory, Schedule, find_optimizer, find_schedule


def checked_strategy(
    config: Config, workload: Workload, time_noise: float, *, is_steady: bool = False
) -> Strategy:
    """The strategy of a run; an error if it, the model and the data do not go together."""
    if workload.tested_by_workers:
        refuse_tests_at_the_server(config)
    check_model_and_data(workload, config.recipe.batch_size)
    try_optimizer(workload.model, config.recipe, *own_optimizer(config, workload))
    units = workload.units
    if config.recipe.augmentation and workload.objective.targets == "classes":
        raise SettingError("augmentation moves images but not their targets; switch it off.")
    state = {k: v.detach().clone() for k, v in workload.model.state_dict().items()}
    job = config.job
    settings = (job.workers, job.rounds, config.recipe, job.seed, time_noise, is_steady)
    return strategy_class(job.strategy)(Job(units, state, *settings), config.strategy)


def own_optimizer(
    config: Config, workload: Workload
) -> tuple[OptimizerFactory | None, Schedule | None]:
    """The user's optimizer and schedule, if there are any."""
    return (
        workload.custom_optimizer or find_optimizer(config.recipe.optimizer),
        workload.schedule or find_schedule(config.recipe.schedule),
    )
