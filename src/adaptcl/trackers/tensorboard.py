"""TensorBoard: event files in the run's folder, for `tensorboard --logdir RUNS`."""

from __future__ import annotations

from torch.utils.tensorboard.writer import SummaryWriter

from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.trackers import TrackedRun, round_metrics, summary_metrics


class TensorBoardTracker:
    """Writes curves by round and worker, and the settings as text."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                # What a killed run wrote after its last checkpoint is told again.
                self._writer = SummaryWriter(
                    str(self._run.folder / "tensorboard"),
                    purge_step=event.rounds_done + 1 if event.rounds_done else None,
                )
                rows = [f"| {name} | {value} |" for name, value in self._run.settings.items()]
                table = "\n".join(["| setting | value |", "|---|---|", *rows])
                self._writer.add_text("settings", table)
            case RoundFinished(record) if self._writer is not None:
                for name, value in round_metrics(record).items():
                    self._writer.add_scalar(name, value, record.round)
                self._writer.flush()
            case RunFinished(summary) if self._writer is not None:
                for name, value in summary_metrics(summary).items():
                    self._writer.add_scalar(f"summary/{name}", value, summary.rounds)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
