"""How long a model trains on this machine, measured once before a run that asks for it.

The profile replaces the settings of the run that describe it. They are written to the run's folder
like any others, so a run that is resumed or repeated from its settings has the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adaptcl.config.config import Config
from adaptcl.pruning import ServerView, prune, server_order
from adaptcl.runs.files.run_files import read_settings
from adaptcl.runs.workload import Workload
from adaptcl.training import Recipe, Task
from adaptcl.training.devices import gpu_left_as_found, make_workers
from adaptcl.training.optimizers import find_optimizer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import flops
from adaptcl.units.cut import cut

_ENOUGH = 0.1  # seconds of one trial
_LONG = 2.0  # seconds of a step from which on it is not repeated
_LONGEST = 5.0  # seconds of a step on one core from which on it is not tried
_TRIALS = 3  # the quickest ones that must agree
_AGREEMENT = 1.1  # the factor between these up to which they do
_PATIENCE = 1.5  # seconds after which no more trials are made
_DOUBTFUL = 1.3  # the factor between trials from which on the user is told
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


@dataclass(frozen=True)
class Measurement:
    """How long training takes on this machine."""

    profile: Profile
    spread: float = 1.0  # the factor between trials that should have been equal

    def in_words(self) -> str:
        """How the training time is known, and a doubt if there is one."""
        if self.spread < _DOUBTFUL:
            return "by a measurement on this machine"
        return (
            "by an uncertain measurement on this machine (trials differ by a factor of "
            f"{self.spread:.1f}; is it busy? `train_time` gives one)"
        )


_MEASURED: dict[Hashable, Measurement] = {}  # the measurements of this program


def with_measured_profile(config: Config, workload: Workload) -> tuple[Config, str]:
    """The configuration of a checked run, with its profile on this machine if it asks for one.

    The second is how its training time is known, in words; empty if it was given.

    Runs of one program that train alike share a measurement. Two would differ a little, and with
    them the clocks of methods that are to be compared.
    """
    if not config.environment.asks_for_measurement:
        return config, ""
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
    found = _MEASURED[alike]
    return _with(config, found.profile), found.in_words()


def with_profile_of(folder: Path, config: Config) -> Config:
    """The configuration with the profile that a run in this folder was begun with."""
    if not config.environment.asks_for_measurement:
        return config
    begun = read_settings(folder)
    return _with(config, {name: begun[name] for name in _SETTINGS if name in begun})


def _with(config: Config, profile: Profile) -> Config:
    return replace(config, environment=replace(config.environment, **profile))


@gpu_left_as_found()
def measure(workload: Workload, recipe: Recipe, seed: int, precision: str) -> Measurement:
    """Train the model, and a smaller one cut from it, for a moment on one worker's samples.

    On a CPU the time is the wall time on all cores, or that of one core if it is shorter. Where
    other programs take cores, the threads of a training wait for each other for several times as
    long as it takes. What one core needs is hardly changed by them, so the share that shrinks with
    FLOPs follows from it.
    """
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
    everything = units.everything()
    order = server_order("index")
    assert order is not None
    importance = order.importance(ServerView(units, state, 0, 0, seed))
    smaller = prune(units, everything, importance, _CUT, width_multiple=_WIDTH_MULTIPLE)
    tasks = [Task(0, 1, cut(state, units, kept), kept, recipe) for kept in (everything, smaller)]
    mini_batches = tasks[0].mini_batch_count(len(part))
    on_gpu = workload.device.type == "cuda"
    walls = _trials(worker, tasks, mini_batches, time.perf_counter, is_captured=on_gpu)
    cores, step = walls, walls[0].best / mini_batches
    if workload.device.type == "cpu" and step * torch.get_num_threads() < _LONGEST:
        with _one_core():
            cores = _trials(worker, tasks, mini_batches, time.thread_time)
    whole, small = cores
    work = flops(units, smaller) / (flops(units, everything) or 1)
    share = 0.0
    if 0 < work <= 1 - _SMALLEST_DIFFERENCE:
        share = (1 - small.best / whole.best) / (1 - work)
    mean_samples = sum(map(len, parts)) / len(parts)
    seconds = min(walls[0].best, whole.best) * mean_samples / len(part)
    profile = {
        "train_time": float(f"{seconds:.2g}"),
        "profile_epochs": recipe.epochs,
        "flops_share": round(min(1.0, max(0.0, share)), 1),
        "samples_share": 1.0,
    }
    spreads = [each.spread for each in (*walls, *cores)]
    return Measurement(profile, max(*spreads, walls[0].best / whole.best))


@dataclass(frozen=True)
class _Trials:
    """How many seconds a training takes, by each of some trials."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The factor between the quickest trials: 1 if they agree."""
        return sorted(self.seconds)[:_TRIALS][-1] / self.best


def _trials(
    worker: Worker,
    tasks: Sequence[Task],
    mini_batches: int,
    clock: Callable[[], float],
    *,
    is_captured: bool = False,
) -> list[_Trials]:
    """How long each task takes, of so many mini-batches; of a long one only a part is tried.

    The tasks take turns, so that what else the machine does meets all alike. Trials are short and
    go on until the quickest agree: those were disturbed least. `is_captured` says that the first
    step does not count, as on a GPU, which captures it.
    """
    memory = WorkerMemory(lasso_lambda=_LASSO if tasks[0].recipe.strength > 0 else 0.0)

    def trial(task: Task, count: int) -> float:
        part = replace(task.recipe, epochs=task.recipe.epochs * count / mini_batches)
        began = clock()
        worker.carry_out(replace(task, recipe=part), memory)
        return (clock() - began) / count

    for task in tasks if is_captured else ():
        trial(task, 1)
    steps = [trial(task, 1) for task in tasks]  # also fills caches
    if max(steps) >= _LONG:
        return [_Trials((step * mini_batches,)) for step in steps]
    step = min(trial(tasks[0], 1) for _ in range(_TRIALS)) if steps[0] < _ENOUGH else steps[0]
    count = max(1, min(mini_batches, round(_ENOUGH / step)))
    found, end = [_Trials(()) for _ in tasks], time.monotonic() + _PATIENCE
    while len(found[0].seconds) < _TRIALS or (
        max(each.spread for each in found) > _AGREEMENT and time.monotonic() < end
    ):
        found = [
            _Trials((*each.seconds, trial(task, count) * mini_batches))
            for task, each in zip(tasks, found, strict=True)
        ]
    return found


@contextmanager
def _one_core() -> Iterator[None]:
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)
