"""MLflow: a run in the tracking store that MLFLOW_TRACKING_URI names, or in `mlruns` beside it."""

from __future__ import annotations

import os
import time

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.trackers import TrackedRun, round_metrics, summary_metrics

_EXPERIMENT = "adaptcl"
_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""


class MLflowTracker:
    """Logs parameters, metrics by round and worker, and the run's files."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:
            # MLflow keeps its plain files for those who ask; nothing else works without a server.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            store = (run.folder.parent / "mlruns").absolute().as_uri()
        self._client = MlflowClient(store)
        self._id = ""

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._begin()
            case RoundFinished(record):
                self._log(round_metrics(record), record.round)
            case RunFinished(summary):
                self._log(summary_metrics(summary), summary.rounds)
                for path in self._run.artefacts():
                    self._client.log_artifact(self._id, str(path))
                self._client.set_terminated(self._id, "FINISHED")
                self._id = ""

    def close(self) -> None:
        if self._id:
            self._client.set_terminated(self._id, "KILLED")

    def _begin(self) -> None:
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

    def _log(self, values: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)
