"""Experiment trackers that a run can report to: they only listen.

Their libraries are optional, so each class imports its own. A new tracker is one class and one line
in `TRACKERS`.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptcl.config.config import Config
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.files.run_files import CONFIG, INPUTS, MODEL, ROUNDS, SUMMARY
from adaptcl.runs.session import Track
from adaptcl.storage import written_whole

_IDS = "trackers.json"
_EXPERIMENT = "adaptcl"
_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""
_MOST_WORKERS = 100
"""With more workers than this none has curves of its own: nobody could look at them."""

ARTEFACTS = (CONFIG, ROUNDS, SUMMARY, MODEL, INPUTS)
"""Files of a finished run's folder that trackers keep a copy of."""


class Tracker(ABC):
    """A listener that reports a run to a tracker; `close` is called however the run ends."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._begin(event.rounds_done)
            case RoundFinished(record):
                self._log(round_metrics(record), record.round)
            case RunFinished(summary):
                self._finish(summary_metrics(summary), summary.rounds)

    @abstractmethod
    def _begin(self, rounds_done: int) -> None: ...

    @abstractmethod
    def _log(self, values: Mapping[str, float], round_: int) -> None: ...

    @abstractmethod
    def _finish(self, values: Mapping[str, float], rounds: int) -> None: ...

    @abstractmethod
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
    try:
        import_module(name)
    except ImportError:
        raise SettingError(
            f"The tracker {name} is not installed; pip install 'adaptcl[{name}]' installs it."
        ) from None
    return TRACKERS[name]


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


class TensorBoardTracker(Tracker):
    """Event files in the run's folder, for `tensorboard --logdir RUNS`: curves by round and worker,
    and the settings as text."""

    _writer: Any = None

    def _begin(self, rounds_done: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        # What a killed run wrote after its last checkpoint is told again.
        purge_step = rounds_done + 1 if rounds_done else None
        self._writer = SummaryWriter(str(self._run.folder / "tensorboard"), purge_step=purge_step)
        rows = [f"| {name} | {value} |" for name, value in self._run.settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))

    def _log(self, values: Mapping[str, float], round_: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def _finish(self, values: Mapping[str, float], rounds: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"summary/{name}", value, rounds)

    def close(self) -> None:
        if self._writer:
            self._writer.close()


class MLflowTracker(Tracker):
    """A run in the tracking store that MLFLOW_TRACKING_URI names, or in `mlruns` beside it:
    parameters, metrics by round and worker, and the run's files."""

    _id = ""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.tracking import MlflowClient

        super().__init__(run)
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:
            # MLflow keeps its plain files for those who ask; nothing else works without a server.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            store = (run.folder.parent / "mlruns").absolute().as_uri()
        self._client = MlflowClient(store)

    def _begin(self, rounds_done: int) -> None:
        from mlflow.entities import Param

        before = self._run.identifier("mlflow")
        if before is not None:
            self._id = before
            self._client.update_run(before, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(_EXPERIMENT)
        self._id = self._client.create_run(experiment, run_name=self._run.name).info.run_id
        self._run.remember("mlflow", self._id)
        params = [Param(name, str(value)) for name, value in self._run.settings.items()]
        for begin in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self._id, params=params[begin : begin + _AT_ONCE])

    def _log(self, values: Mapping[str, float], round_: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, round_) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _finish(self, values: Mapping[str, float], rounds: int) -> None:
        self._log(values, rounds)
        for path in self._run.artefacts():
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FINISHED")
        self._id = ""

    def close(self) -> None:
        if self._id:
            self._client.set_terminated(self._id, "KILLED")


class WandbTracker(Tracker):
    """A run in the project `adaptcl`: settings, metrics by round and worker, and the run's files.

    WANDB_MODE=offline keeps it on this machine.
    """

    _tracked: Any = None

    def _begin(self, rounds_done: int) -> None:
        import wandb

        identifier = self._run.identifier("wandb") or uuid.uuid4().hex[:8]
        self._tracked = wandb.init(
            project=_EXPERIMENT,
            id=identifier,
            name=self._run.name,
            config=dict(self._run.settings),
            dir=str(self._run.folder),
            resume="allow",
        )
        self._run.remember("wandb", identifier)

    def _log(self, values: Mapping[str, float], round_: int) -> None:
        self._tracked.log(dict(values), step=round_)

    def _finish(self, values: Mapping[str, float], rounds: int) -> None:
        self._tracked.summary.update(dict(values))
        for path in self._run.artefacts():
            self._tracked.save(str(path), base_path=str(self._run.folder), policy="now")
        self._tracked.finish()
        self._tracked = None

    def close(self) -> None:
        if self._tracked:
            self._tracked.finish(exit_code=1)


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}
"""By the name of their library."""
