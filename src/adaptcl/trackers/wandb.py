"""Weights & Biases: a run in the project `adaptcl`; WANDB_MODE=offline keeps it on this machine."""

from __future__ import annotations

import uuid

import wandb

from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.trackers import TrackedRun, round_metrics, summary_metrics


class WandbTracker:
    """Logs settings, metrics by round and worker, and the run's files."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._tracked: wandb.Run | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                identifier = self._run.identifier("wandb") or uuid.uuid4().hex[:8]
                self._tracked = wandb.init(
                    project="adaptcl",
                    id=identifier,
                    name=self._run.name,
                    config=dict(self._run.settings),
                    dir=str(self._run.folder),
                    resume="allow",
                )
                self._run.remember("wandb", identifier)
            case RoundFinished(record) if self._tracked is not None:
                self._tracked.log(round_metrics(record), step=record.round)
            case RunFinished(summary) if self._tracked is not None:
                self._tracked.summary.update(summary_metrics(summary))
                for path in self._run.artefacts():
                    self._tracked.save(str(path), base_path=str(self._run.folder), policy="now")
                self._tracked.finish()
                self._tracked = None

    def close(self) -> None:
        if self._tracked is not None:
            self._tracked.finish(exit_code=1)
