"""`adaptcl.run`: train your model on your data with simulated workers, from Python."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import config as configuration
from adaptcl.config.config import FROM_PYTHON, settings_from_python
from adaptcl.config.effects import explain_ineffective
from adaptcl.errors import warn_user
from adaptcl.events import Event, Listener, Warned
from adaptcl.runs.folder import RunFolder, read_delivered, read_finished
from adaptcl.runs.result import Result
from adaptcl.runs.resumption import asks_for_more_rounds
from adaptcl.runs.session import recognise, run_session, simulated_session
from adaptcl.runs.training_profile import with_profile_of
from adaptcl.runs.workload import datasets_by_worker, workload_from_python
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
    **settings: Any,
) -> Result:
    """Train your model on your data with simulated workers.

    `train` and `test` are data sets: `(inputs, labels)` pairs of tensors or arrays, or anything
    with `len` and items of `(input, label)`. `train` may also be a list with one data set for each
    worker; otherwise the setting `partition` says how it is dealt. Your model is not changed.

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
    parts = datasets_by_worker(train)
    if parts is not None:
        values["workers"] = len(parts)
    named = settings_from_python(settings, dealt=parts is not None)
    config = configuration.configure(configuration.over_preset(preset, values, named))
    for sentence in explain_ineffective(named, [config]):
        warn_user(sentence)
    trained = copy.deepcopy(uncompiled(model))
    workload = workload_from_python(trained, train if parts is None else parts, test, config.job)
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
    return Result(*finished, workload.model.eval(), sub_models, path, inputs)


def _as_warning(event: Event) -> None:
    if isinstance(event, Warned):
        warn_user(event.message)
