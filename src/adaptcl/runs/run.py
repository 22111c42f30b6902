"""`adaptcl.run`: train your model on your data with simulated workers, from Python."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import config as configuration
from adaptcl.config import Config
from adaptcl.config.config import FROM_PYTHON, settings_from_python
from adaptcl.config.effects import explain_ineffective
from adaptcl.data.convert import Collate
from adaptcl.errors import SettingError, describe_type, warn_user
from adaptcl.events import Event, Listener, Warned
from adaptcl.runs.folder import RunFolder, read_delivered, read_finished
from adaptcl.runs.result import Result
from adaptcl.runs.resumption import asks_for_more_rounds
from adaptcl.runs.session import recognise, run_session, simulated_session
from adaptcl.runs.training_profile import with_profile_of
from adaptcl.runs.workload import datasets_by_worker, workload_from_python
from adaptcl.training.objective import Objective, find_objective, with_code, with_main
from adaptcl.units.trace import uncompiled


def run(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    preset: str | None = None,
    loss: Callable[..., Any] | str | None = None,
    metrics: Mapping[str, Any] | None = None,
    collate: Collate | None = None,
    **settings: Any,
) -> Result:
    """Train your model on your data with simulated workers.

    `train` and `test` are data sets: `(inputs, targets)` pairs of tensors or arrays, or anything
    with `len` and items of `(input, target)`. Inputs may be tuples or dictionaries of tensors.
    `train` may also be a list with one data set for each worker; otherwise the setting `partition`
    says how it is dealt. Your model is not changed.

    The setting `objective` says what is learned, as `"classification"` or `"regression"`. Or give
    a `loss` of outputs and targets, and `metrics` by name: functions of outputs and targets, or
    objects with `update`, `compute` and `reset`. The first is the main one, unless `main_metric`
    names another; `better="lower"` says that lower values of it are better. `collate` makes one
    batch of a list of samples, for instance by padding. `optimizer` may be a function of the
    parameters, and `schedule` one of the round that gives the factor of the learning rate
    (docs/own-task.md).

    All other settings are those of the command line, with underscores: `strategy="adaptcl",
    workers=10, rounds=20, sigma=2`. Name a custom strategy, codec or pruning order as there,
    `strategy="package.module:Class"`, or give the class itself.

    The clock of the simulation is that of your model: how long it trains is measured once, on this
    machine, before the run. `train_time` gives it instead, and a `preset` brings its own clock.

    With `out` the run is written to that folder. `resume=True` continues an interrupted run there,
    or one that now has more `rounds`; of a finished run it returns the result.

    `listeners` are functions of one event (`adaptcl.events`), called as things happen. One that
    raises `adaptcl.StopRun` ends the run cleanly after the round that is running.
    `adaptcl.Progress` is a listener that shows the progress. Every warning of the run is also an
    ordinary Python warning.
    """
    listeners = [_as_warning, *listeners]
    values: dict[str, Any] = {"model": FROM_PYTHON, "data": FROM_PYTHON}
    code = {k: settings.pop(k) for k in ("optimizer", "schedule") if _is_function(settings.get(k))}
    objective = _objective(settings, loss, metrics)
    parts = datasets_by_worker(train, objective.targets, collate)
    if parts is not None:
        values["workers"] = len(parts)
    named = settings_from_python(settings, dealt=parts is not None)
    config = configuration.configure(configuration.over_preset(preset, values, named))
    objective = with_main(objective, config.job.main_metric, config.job.better)
    config = _noting(config, code, objective, is_custom=loss is not None or metrics is not None)
    for sentence in explain_ineffective(named, [config]):
        warn_user(sentence)
    trained = copy.deepcopy(uncompiled(model))
    data = train if parts is None else parts
    workload = replace(
        workload_from_python(trained, data, test, config.job, objective, collate),
        custom_optimizer=code.get("optimizer"),
        schedule=code.get("schedule"),
    )
    path = Path(out) if out is not None else None
    if path is None:
        return run_session(simulated_session(config, workload), None, listeners)
    config = config.with_absolute_paths()
    if not (resume and (path / "config.toml").exists()):
        session = simulated_session(config, workload)
        folder = RunFolder.create(path, session.config.to_toml())
        return run_session(session, folder, listeners)
    config = with_profile_of(path, config)
    finished = None if asks_for_more_rounds(path, config) else read_finished(path)
    if finished is None:
        session = simulated_session(config, workload)
        return run_session(session, RunFolder.open(path), listeners)
    with closing(RunFolder.open(path)) as folder:
        recognise(folder, config, workload)
    state, inputs, sub_models = read_delivered(path)
    workload.model.load_state_dict(state)
    return Result(*finished, workload.model.eval(), sub_models, path, inputs, objective)


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value)


def _objective(
    settings: Mapping[str, Any], loss: Any, metrics: Mapping[str, Any] | None
) -> Objective:
    """What a call asks for: a named objective, the user's loss and metrics, or both."""
    name = settings.get("objective")
    if name is not None and not isinstance(name, str):
        raise SettingError(f"objective is {describe_type(name)}, but it must be a name.")
    return with_code(find_objective(name) if name is not None else None, loss, metrics)


def _noting(
    config: Config, code: Mapping[str, Any], objective: Objective, *, is_custom: bool
) -> Config:
    """The settings with a note of what came as code, and with what a reader must know of it."""
    job, recipe = config.job, config.recipe
    if is_custom:
        main = objective.main
        job = replace(job, objective=FROM_PYTHON, main_metric=main.name, better=main.better)
    if "optimizer" in code:
        recipe = replace(recipe, optimizer=FROM_PYTHON)
    if "schedule" in code:
        recipe = replace(recipe, schedule=FROM_PYTHON)
    return replace(config, job=job, recipe=recipe)


def _as_warning(event: Event) -> None:
    if isinstance(event, Warned):
        warn_user(event.message)
