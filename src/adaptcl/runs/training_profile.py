"""How long a model trains on this machine, measured once before a run that asks for it.

The profile replaces the settings of the run that describe it. They are written to the run's folder
like any others, so a run that is resumed or repeated from its settings has the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptcl.config.config import Config
from adaptcl.pruning import ServerView, prune, server_order
from adaptcl.runs.files.run_files import read_settings
from adaptcl.runs.workload import Workload
from adaptcl.training import Recipe, Task
from adaptcl.training.devices import gpu_left_as_found, make_workers
from adaptcl.training.optimizers import find_optimizer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import Kept, flops
from adaptcl.units.cut import cut

_ENOUGH = 0.2  # seconds of training after which its speed is known well enough
_LONG = 2.0  # seconds of a step from which on it is not repeated
_TRIALS = 3
_CUT = 0.5  # the pruned rate of the sub-model that shows how far the time shrinks with FLOPs
_WIDTH_MULTIPLE = 16  # of its layers: other widths are slow on most hardware
_LASSO = 1e-9
"""A λ that changes nothing but the time. Without one the worker would look for it, as in its first
task only."""
_SMALLEST_DIFFERENCE = 0.1
"""Models whose FLOPs differ by a smaller share than this show nothing but noise."""

Profile = Mapping[str, Any]
"""The settings that describe how long training takes, as in `EnvironmentSettings`."""
_SETTINGS = ("train_time", "profile_epochs", "flops_share", "samples_share")

_MEASURED: dict[Hashable, Profile] = {}  # the measurements of this program


def with_measured_profile(config: Config, workload: Workload) -> Config:
    """The configuration of a checked run, with its profile on this machine if it asks for one.

    Runs of one program that train alike share a measurement. Two would differ a little, and with
    them the clocks of methods that are to be compared.
    """
    if not config.environment.asks_for_measurement:
        return config
    recipe = config.recipe
    alike = (
        str(workload.model),
        tuple((name, tensor.shape) for name, tensor in workload.model.state_dict().items()),
        (len(workload.worker_samples), sum(map(len, workload.worker_samples))),
        (recipe.batch_size, recipe.epochs, recipe.optimizer, recipe.strength > 0),
        (recipe.augmentation, str(workload.device), config.job.precision),
        (workload.objective.name, workload.custom_optimizer),
    )
    if alike not in _MEASURED:
        _MEASURED[alike] = measure(workload, recipe, config.job.seed, config.job.precision)
    return _with(config, _MEASURED[alike])


def with_profile_of(folder: Path, config: Config) -> Config:
    """The configuration with the profile that a run in this folder was begun with."""
    if not config.environment.asks_for_measurement:
        return config
    begun = read_settings(folder)
    return _with(config, {name: begun[name] for name in _SETTINGS if name in begun})


def _with(config: Config, profile: Profile) -> Config:
    return replace(config, environment=replace(config.environment, **profile))


@gpu_left_as_found()
def measure(workload: Workload, recipe: Recipe, seed: int, precision: str) -> Profile:
    """Train the model, and a smaller one cut from it, for a moment on one worker's samples."""
    units = workload.units
    parts = sorted(workload.worker_samples, key=len)
    part = parts[len(parts) // 2]
    optimizer = workload.custom_optimizer or find_optimizer(recipe.optimizer)
    (worker,) = make_workers(
        workload.model,
        units,
        [part],
        workload.example(),
        seed,
        precision,
        objective=workload.objective,
        custom_optimizer=optimizer,
    )
    state = workload.model.state_dict()

    def took(kept: Kept) -> _Duration:
        task = Task(0, 1, cut(state, units, kept), kept, recipe)
        return _duration(worker, task, task.mini_batch_count(len(part)))

    everything = units.everything()
    order = server_order("index")
    assert order is not None
    importance = order.importance(ServerView(units, state, 0, 0, seed))
    smaller = prune(units, everything, importance, _CUT, width_multiple=_WIDTH_MULTIPLE)
    whole = took(everything)
    work = flops(units, smaller) / (flops(units, everything) or 1)
    share = 0.0
    if 0 < work <= 1 - _SMALLEST_DIFFERENCE:
        share = (1 - took(smaller).processor / whole.processor) / (1 - work)
    mean_samples = sum(map(len, parts)) / len(parts)
    # Wall time, unless other programs make it longer than even one core alone would need.
    seconds = min(whole.wall, whole.processor) * mean_samples / len(part)
    return {
        "train_time": float(f"{seconds:.2g}"),
        "profile_epochs": recipe.epochs,
        "flops_share": round(min(1.0, max(0.0, share)), 1),
        "samples_share": 1.0,
    }


@dataclass(frozen=True)
class _Duration:
    """The seconds of a training, best of some trials."""

    wall: float
    processor: float
    """The sum over all cores, which other programs hardly change; on a GPU the same as `wall`."""

    def times(self, factor: float) -> _Duration:
        return _Duration(self.wall * factor, self.processor * factor)


def _duration(worker: Worker, task: Task, mini_batches: int) -> _Duration:
    """How long a task of so many mini-batches takes; of a long one only a part is tried."""
    on_gpu = worker.samples.device.type == "cuda"
    memory = WorkerMemory(lasso_lambda=_LASSO if task.recipe.strength > 0 else 0.0)

    def best_of(trials: int, count: int) -> _Duration:
        part = replace(task.recipe, epochs=task.recipe.epochs * count / mini_batches)
        walls, cores = [], []
        for _ in range(trials):
            began = time.perf_counter(), time.process_time()
            worker.carry_out(replace(task, recipe=part), memory)
            walls.append(time.perf_counter() - began[0])
            cores.append(walls[-1] if on_gpu else time.process_time() - began[1])
        return _Duration(min(walls), min(cores))

    one = best_of(1, 1)  # the first fills caches and, on a GPU, captures the step
    if one.wall < _LONG:
        one = best_of(_TRIALS, 1)
    count = max(1, min(mini_batches, round(_ENOUGH / one.wall)))
    return (best_of(_TRIALS, count) if count > 1 else one).times(mini_batches / count)
