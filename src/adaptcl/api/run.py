"""`adaptcl.run`, `forecast`, `sweep` and `describe`: your model, your data, simulated workers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from html import escape
from inspect import isclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptcl.api.results import Result, Results, show_in_folder, with_progress
from adaptcl.config.config import FROM_PYTHON, Config, configure, settings_from_python
from adaptcl.config.effects import explain_ineffective
from adaptcl.config.files import over_preset
from adaptcl.config.grid import expand_grid
from adaptcl.custom import import_name
from adaptcl.data.convert import Collate, as_example
from adaptcl.errors import SettingError, describe_type, warn_user
from adaptcl.events import Event, Listener, Warned
from adaptcl.report.figures.pictures import PictureOptions
from adaptcl.report.table import forecast_table
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import (
    is_run_folder,
    read_delivered,
    read_finished,
    read_sub_models,
)
from adaptcl.runs.forecast import Forecast, forecast_workload
from adaptcl.runs.result import FailedRun, noting_failure
from adaptcl.runs.resumption import recognise
from adaptcl.runs.session import is_finished, run_in_folder, run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.training_profile import with_profile_of
from adaptcl.runs.workload import Workload, is_list_by_worker, workload_from_python
from adaptcl.trackers import tracking
from adaptcl.training.objectives.objective import Objective, custom_objective, with_main
from adaptcl.units import Description
from adaptcl.units import describe as describe_units
from adaptcl.units.user_model import refuse_no_module, uncompiled

USUAL_HOLDOUT = 0.1
"""The share that workers hold back if there is no test data."""


def run(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Listener | Sequence[Listener] = (),
    track: str | Sequence[str] = (),
    figures: str = "png",
    progress: bool | None = None,
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

    Without `test` every worker holds back a share of its samples (the setting `holdout`, 0.1 unless
    you give another) and tests the model that it is sent; so it does on its part of a `test` that
    is a list with one data set for each worker. `result.worker_metrics` has what each found.

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

    With `out` the run is written to that folder, with its figures in the formats that `figures`
    names (`"pdf,svg"`; `"none"` draws none) and its `report.html`. `resume=True` continues an
    interrupted run there, or one that now has more `rounds`; of a finished run it returns the
    result. `track` names trackers: `"tensorboard,mlflow"`.

    `adaptcl.sweep` makes several runs, one for each strategy, seed or other value in a list.

    `listeners` is a function of one event (`adaptcl.events`), or several, called as things happen.
    One that raises `adaptcl.StopRun` ends the run cleanly after the round that is running.
    Every warning of the run is also an ordinary Python warning. A notebook shows the progress of
    the run; `progress=True` shows it elsewhere too, and `progress=False` nowhere.
    """
    return _run(
        model,
        train,
        test,
        out=out,
        resume=resume,
        listeners=listeners,
        track=track,
        pictures=PictureOptions.parse(figures),
        progress=progress,
        preset=preset,
        loss=loss,
        metrics=metrics,
        collate=collate,
        **settings,
    )


def _run(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    out: str | Path | None,
    resume: bool,
    listeners: Listener | Sequence[Listener],
    track: str | Sequence[str],
    pictures: PictureOptions | None,
    progress: bool | None,
    preset: str | None,
    loss: Callable[..., Any] | str | None = None,
    metrics: Mapping[str, Any] | None = None,
    collate: Collate | None = None,
    beside: Sequence[Config] | None = (),
    **settings: Any,
) -> Result:
    """A run that is shown in its folder unless `pictures` is None.

    It warns of settings without effect in it and those `beside` it; None if that is done."""
    path = None if out is None else Path(out)
    _refuse_without_folder(out, track, resume=resume)
    trackers = tracking(track)
    config, workload = prepare(model, train, test, preset, settings, loss, metrics, collate)
    if beside is not None:
        _warn_of_ineffective(settings, [config, *beside])
    with with_progress(progress, listeners) as listening:
        all_listeners = [_as_warning, *listening]
        if path is None:
            return Result.of(run_session(simulated_session(config, workload), None, all_listeners))
        config = config.with_absolute_paths()
        if resume and is_run_folder(path):
            config = with_profile_of(path, config)
            if is_finished(path, config.values()):
                return _finished(path, config, workload)
        session = simulated_session(config, workload)
        result = Result.of(run_in_folder(session, path, all_listeners, trackers, resume=resume))
    if pictures is not None:
        show_in_folder([result], path, pictures)
    return result


def _refuse_without_folder(
    out: str | Path | None, track: str | Sequence[str], *, resume: bool
) -> None:
    for name, is_asked in (("track", track), ("resume", resume)):
        if out is None and is_asked:
            raise SettingError(f"{name} needs a folder for the run; give one by out=.")


def prepare(
    model: nn.Module,
    train: Any,
    test: Any,
    preset: str | None,
    given: Mapping[str, Any],
    loss: Callable[..., Any] | str | None = None,
    metrics: Mapping[str, Any] | None = None,
    collate: Collate | None = None,
) -> tuple[Config, Workload]:
    settings = dict(given)
    values: dict[str, Any] = {"model": FROM_PYTHON, "data": FROM_PYTHON}
    code = {k: settings.pop(k) for k in ("optimizer", "schedule") if _is_function(settings.get(k))}
    if isinstance(settings.get("optimizer"), torch.optim.Optimizer):
        raise SettingError(
            "optimizer is that of one model, but every worker makes its own; give a function, such "
            "as lambda parameters: torch.optim.Adam(parameters)."
        )
    objective = _objective(settings, loss, metrics)
    is_dealt = is_list_by_worker(train, "train")
    if is_dealt:
        values["workers"] = len(train)
    named = settings_from_python(settings, dealt=is_dealt)
    config = configure(over_preset(preset, values, named))
    config = _with_tests(config, test)
    objective = with_main(objective, config.job.main_metric, config.job.better)
    config = _noting(config, code, objective, is_custom=loss is not None or metrics is not None)
    trained = _copied(model)
    workload = workload_from_python(trained, train, test, config.job, objective, collate)
    optimizer, schedule = code.get("optimizer"), code.get("schedule")
    return config, replace(workload, custom_optimizer=optimizer, schedule=schedule)


def _warn_of_ineffective(given: Mapping[str, Any], configs: Sequence[Config]) -> None:
    """Warn of settings that were given and change none of these runs."""
    for sentence in explain_ineffective([k for k in given if not _is_code(k, given[k])], configs):
        warn_user(sentence)


def _copied(model: nn.Module) -> nn.Module:
    try:
        copied: nn.Module = copy.deepcopy(uncompiled(model))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise SettingError(
            f"The model ({type(model).__name__}) cannot be copied, and every worker has a copy of "
            f"it: {error}; keep such things out of the module, or give it a __deepcopy__."
        ) from error
    return copied


def _finished(path: Path, config: Config, workload: Workload) -> Result:
    finished = read_finished(path)
    assert finished is not None
    with closing(RunFolder.open(path)) as folder:
        recognise(folder, config, workload)
    state, inputs = read_delivered(path)
    workload.model.load_state_dict(state)
    summary, rounds = finished
    return Result(
        summary=summary,
        rounds=rounds,
        model=workload.model.eval(),
        sub_models=read_sub_models(path),
        folder=path,
        inputs=inputs,
        objective=workload.objective,
        settings=config.values(),
    )


def _with_tests(config: Config, test: Any) -> Config:
    """The settings with a share to hold back where no test data is given."""
    if test is None:
        return replace(config, job=replace(config.job, holdout=config.job.holdout or USUAL_HOLDOUT))
    if config.job.holdout:
        raise SettingError(
            f"holdout is {config.job.holdout:g}, but test data is given; leave one of them out."
        )
    return config


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value)


def _objective(
    settings: Mapping[str, Any], loss: Any, metrics: Mapping[str, Any] | None
) -> Objective:
    """The named objective, the user's loss and metrics, or both."""
    name = settings.get("objective")
    if name is not None and not isinstance(name, str):
        raise SettingError(f"objective is {describe_type(name)}, but it must be a name.")
    return custom_objective(loss, metrics, name)


def _noting(
    config: Config, code: Mapping[str, Any], objective: Objective, *, is_custom: bool
) -> Config:
    """The settings, in which a note stands for what came as code."""
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


class Forecasts(tuple[Forecast, ...]):
    """A forecast for each strategy. `print` writes them as a table, a notebook too."""

    def __repr__(self) -> str:
        return f"clock: {self[0].clock}\n{forecast_table(self)}"

    def _repr_html_(self) -> str:
        return f"<p>clock: {escape(self[0].clock)}</p>{forecast_table(self).html()}"


def forecast(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    preset: str | None = None,
    loss: Callable[..., Any] | str | None = None,
    metrics: Mapping[str, Any] | None = None,
    collate: Collate | None = None,
    **settings: Any,
) -> Forecasts:
    """Compute how long a run would take on its clock, without training anything.

    The arguments are those of `adaptcl.run` that say what is trained, and how. `strategy` may be a
    list, with a forecast for each.
    """
    named = settings.get("strategy")
    strategies = named if isinstance(named, list | tuple) else [named]
    prepared = []
    for strategy in strategies:
        chosen = {**settings, "strategy": strategy} if strategy is not None else settings
        prepared.append(prepare(model, train, test, preset, chosen, loss, metrics, collate))
    _warn_of_ineffective(settings, [config for config, _ in prepared])
    return Forecasts([forecast_workload(*each) for each in prepared])


def describe(model: nn.Module, example: Any, fixed: Sequence[str] = ()) -> Description:
    """Which units of a model can be cut, which cannot, and why.

    `example` is the inputs of a few samples, two at least, in any form that `adaptcl.run` takes.
    Units of the modules that `fixed` names, with * and ?, are never cut. Your model stays as it is.
    """
    refuse_no_module(model)
    floats = (each for each in model.parameters() if each.is_floating_point())
    return describe_units(model, as_example(example, next(floats, None)), fixed)


def sweep(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Listener | Sequence[Listener] = (),
    track: str | Sequence[str] = (),
    figures: str = "png",
    progress: bool | None = None,
    preset: str | None = None,
    **settings: Any,
) -> Results:
    """Make a run for each combination of the listed settings, and return all results.

    Any setting may be a list: `strategy=["fedavg-s", "adaptcl"], seed=[1, 2, 3], sigma=[2, 5]` are
    twelve runs. Everything else is as in `adaptcl.run`. With `out` each run has a folder below it;
    called again with `resume=True`, it goes on where it was interrupted.

    If a run fails, the others go on; a warning says so, and `failed` of the results names it.
    """
    pictures = PictureOptions.parse(figures)
    _refuse_without_folder(out, track, resume=resume)
    code = {name: value for name, value in settings.items() if _is_code(name, value)}
    named = {name: _named(name, value) for name, value in settings.items() if name not in code}
    values = {"model": FROM_PYTHON, "data": FROM_PYTHON}
    results, failed = list[Result](), list[FailedRun]()
    with with_progress(progress, listeners) as all_listeners:
        points = expand_grid(over_preset(preset, values, named))
        for place, point in enumerate(points):
            job = point.config.job
            chosen = {name: point.values[name] for name in named if name in point.values}
            chosen |= {"strategy": job.strategy, "seed": job.seed, **code}
            folder = None if out is None else Path(out) / point.name
            options: dict[str, Any] = {"out": folder, "resume": resume, "track": track, **chosen}
            options |= {"preset": preset, "pictures": None, "progress": False}
            options["beside"] = None if place else [each.config for each in points]
            with noting_failure(job.strategy, job.seed, folder, failed) as count_rounds:
                options["listeners"] = [*all_listeners, count_rounds]
                results.append(_run(model, train, test, **options))
    if not results:
        raise failed[0].error
    for each in failed:
        warn_user(str(each))
    if out is not None:
        show_in_folder(results, Path(out), pictures)
    made = Results(results)
    made.failed = tuple(failed)
    return made


def _is_code(name: str, value: Any) -> bool:
    """Whether an argument of `adaptcl.run` is the user's code, and no setting with a value."""
    return name in ("loss", "metrics", "collate") or (callable(value) and not isclass(value))


def _named(name: str, value: Any) -> Any:
    """A setting with names in place of classes."""
    if isinstance(value, list | tuple):
        return [_named(name, each) for each in value]
    return import_name(value, name) if isinstance(value, type) else value
