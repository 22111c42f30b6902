"""`adaptcl.sweep`: several runs in one call, one for each combination of the listed values."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isclass
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import config as configuration
from adaptcl.api.results import Result, Results, show_in_folder, with_progress
from adaptcl.api.run import run
from adaptcl.config.config import FROM_PYTHON
from adaptcl.config.grid import expand_grid
from adaptcl.custom import import_name
from adaptcl.errors import warn_user
from adaptcl.events import Listener
from adaptcl.report.figures import PictureOptions
from adaptcl.runs.result import FailedRun, noting_failure


def sweep(
    model: nn.Module,
    train: Any,
    test: Any,
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
    code = {name: value for name, value in settings.items() if _is_code(name, value)}
    named = {name: _named(name, value) for name, value in settings.items() if name not in code}
    values = {"model": FROM_PYTHON, "data": FROM_PYTHON}
    results, failed = list[Result](), list[FailedRun]()
    with with_progress(progress, listeners) as heard:
        for point in expand_grid(configuration.over_preset(preset, values, named)):
            job = point.config.job
            chosen = {name: point.values[name] for name in named if name in point.values}
            chosen |= {"strategy": job.strategy, "seed": job.seed, **code}
            folder = None if out is None else Path(out) / point.name
            options: dict[str, Any] = {"out": folder, "resume": resume, "track": track, **chosen}
            options |= {"preset": preset, "figures": "none", "progress": False}
            with noting_failure(job.strategy, job.seed, folder, failed) as count_rounds:
                options["listeners"] = [*heard, count_rounds]
                results.append(run(model, train, test, **options))
    if not results:
        raise failed[0].error
    for each in failed:
        warn_user(str(each))
    show_in_folder(results, None if out is None else Path(out), pictures)
    made = Results(results)
    made.failed = tuple(failed)
    return made


def _is_code(name: str, value: Any) -> bool:
    """Whether an argument of `adaptcl.run` is no setting with a value, but the user's code."""
    return name in ("loss", "metrics", "collate") or (callable(value) and not isclass(value))


def _named(name: str, value: Any) -> Any:
    """A setting with names in place of classes."""
    if isinstance(value, list | tuple):
        return [_named(name, each) for each in value]
    return import_name(value, name) if isinstance(value, type) else value
