"""Experiment trackers that a run can report to, one file each: they only listen.

A new tracker is one file and one line in `TRACKERS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from adaptcl.config.config import Config
from adaptcl.errors import SettingError
from adaptcl.events import Event
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.files.run_files import CONFIG, INPUTS, MODEL, ROUNDS, SUMMARY
from adaptcl.runs.in_folder import Track
from adaptcl.storage import written_whole

TRACKERS = {
    "tensorboard": "adaptcl.trackers.tensorboard:TensorBoardTracker",
    "mlflow": "adaptcl.trackers.mlflow:MLflowTracker",
    "wandb": "adaptcl.trackers.wandb:WandbTracker",
}

_IDS = "trackers.json"
_MOST_WORKERS = 100
"""With more workers than this none has curves of its own: nobody could look at them."""

ARTEFACTS = (CONFIG, ROUNDS, SUMMARY, MODEL, INPUTS)
"""Files of a finished run's folder that trackers keep a copy of."""


class Tracker(Protocol):
    """A listener that reports a run to a tracker; `close` is called however the run ends."""

    def __init__(self, run: TrackedRun) -> None: ...

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def tracking(names: str | Sequence[str]) -> Track:
    """What opens the trackers in a list, or with commas between, for the time of a run.

    It is an error if one is unknown or not installed.
    """
    listed = names.split(",") if isinstance(names, str) else names
    classes = [tracker_class(name.strip()) for name in listed if name.strip()]

    @contextmanager
    def track(folder: Path, config: Config) -> Iterator[list[Tracker]]:
        name = f"{config.job.strategy} seed {config.job.seed}"
        run = TrackedRun(folder, name, config.values())
        trackers = [each(run) for each in classes]
        try:
            yield trackers
        finally:
            for tracker in trackers:
                tracker.close()

    return track


def tracker_class(name: str) -> type[Tracker]:
    if name not in TRACKERS:
        known = ", ".join(TRACKERS)
        raise SettingError(f"There is no tracker {name!r}; there are {known}.")
    module, _, attribute = TRACKERS[name].partition(":")
    try:
        found: type[Tracker] = getattr(import_module(module), attribute)
    except ImportError:
        raise SettingError(
            f"The tracker {name} is not installed; pip install 'adaptcl[{name}]' installs it."
        ) from None
    return found


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to know of a run."""

    folder: Path
    name: str
    settings: Mapping[str, Any]

    def identifier(self, tracker: str) -> str | None:
        """The tracker's name for this run, if the run has been reported to it before."""
        found = self._identifiers().get(tracker)
        return found if isinstance(found, str) else None

    def remember(self, tracker: str, identifier: str) -> None:
        """Keep the tracker's name for this run, so that a resumed run is reported there too."""
        known = {**self._identifiers(), tracker: identifier}
        with written_whole(self.folder / _IDS) as file:
            file.write(json.dumps(known).encode("utf-8"))

    def _identifiers(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads((self.folder / _IDS).read_bytes())
            return found if isinstance(found, dict) else {}
        return {}

    def artefacts(self) -> Iterator[Path]:
        """The files of the run that are there."""
        return (path for name in ARTEFACTS if (path := self.folder / name).is_file())


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name: of the run, and of each worker."""
    found: dict[str, float | None] = {
        "accuracy": record.accuracy,
        **record.metrics,
        "test_loss": record.test_loss,
        "train_loss": record.train_loss,
        "heterogeneity": record.heterogeneity,
        "virtual_time_s": record.virtual_time_s,
        "similarity": record.similarity,
        "bytes_sent": record.bytes_sent,
        "bytes_received": record.bytes_received,
        "workers": len(record.workers),
    }
    if len(record.workers) <= _MOST_WORKERS:
        for worker in record.workers:
            found[f"update_time_s/worker_{worker.worker}"] = worker.update_time_s
            found[f"retention/worker_{worker.worker}"] = worker.retention
            # MLflow makes a metric a file and what is before a slash a folder: no name may be both.
            found[f"worker_train_loss/worker_{worker.worker}"] = worker.train_loss
    return {name: float(value) for name, value in found.items() if value is not None}


def summary_metrics(summary: Summary) -> dict[str, float]:
    """The final numbers of a run by name."""
    return {
        f"final_{summary.metric}": summary.main_value,
        f"best_{summary.metric}": summary.best_value,
        "total_virtual_time_s": summary.virtual_time_s,
        "params_saved": summary.params_saved,
        "flops_saved": summary.flops_saved,
    }
