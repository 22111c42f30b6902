"""Experiment trackers that a run can report to, one file each: they only listen.

A new tracker is one file and one line in `TRACKERS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol

from adaptcl.config.config import Config
from adaptcl.errors import SettingError
from adaptcl.events import Event
from adaptcl.trackers.tracked_run import TrackedRun

TRACKERS = {
    "tensorboard": "adaptcl.trackers.tensorboard:TensorBoardTracker",
    "mlflow": "adaptcl.trackers.mlflow:MLflowTracker",
    "wandb": "adaptcl.trackers.wandb:WandbTracker",
}


class Tracker(Protocol):
    """A listener that reports a run to a tracker; `close` is called however the run ends."""

    def __init__(self, run: TrackedRun) -> None: ...

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def tracker_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Trackers in a list, or with commas between; an error if one is unknown or not installed."""
    listed = names.split(",") if isinstance(names, str) else names
    wanted = tuple(name.strip() for name in listed if name.strip())
    refuse_unknown(wanted)
    return wanted


def refuse_untracked(names: Sequence[str]) -> None:
    """An error if a run without a folder shall be tracked."""
    if names:
        raise SettingError("track needs a folder for the run; give one by out=.")


@contextmanager
def tracked(names: Sequence[str], folder: Path, config: Config) -> Iterator[list[Tracker]]:
    """Trackers that listen to one run and are closed when it ends."""
    name = f"{config.job.strategy} seed {config.job.seed}"
    trackers = open_trackers(names, TrackedRun(folder, name, config.values()))
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()


def open_trackers(names: Sequence[str], run: TrackedRun) -> list[Tracker]:
    """A tracker for each name, ready to listen to this run."""
    refuse_unknown(names)
    return [_class(name)(run) for name in names]


def refuse_unknown(names: Sequence[str]) -> None:
    """An error if there is no such tracker, or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise SettingError(f"There is no tracker {name!r}; there are {known}.")
        _class(name)


def _class(name: str) -> type[Tracker]:
    module, _, attribute = TRACKERS[name].partition(":")
    try:
        found: type[Tracker] = getattr(import_module(module), attribute)
    except ImportError:
        raise SettingError(
            f"The tracker {name} is not installed; pip install 'adaptcl[{name}]' installs it."
        ) from None
    return found
