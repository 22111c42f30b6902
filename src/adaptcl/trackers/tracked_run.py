"""What a tracker needs to know of a run, and the numbers that all trackers report alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.files.run_files import CONFIG, INPUTS, MODEL, ROUNDS, SUMMARY
from adaptcl.storage import written_whole

_IDS = "trackers.json"
_MOST_WORKERS = 100
"""Of more workers than this there are no curves one by one: nobody could look at them."""

ARTEFACTS = (CONFIG, ROUNDS, SUMMARY, MODEL, INPUTS)
"""Files of a finished run's folder that trackers keep a copy of."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it."""

    folder: Path
    """The run's folder; trackers of a run without one keep their files there all the same."""
    name: str
    settings: Mapping[str, Any]

    def identifier(self, tracker: str) -> str | None:
        """The tracker's own name for this run, if it has reported to it before."""
        found = self._identifiers().get(tracker)
        return found if isinstance(found, str) else None

    def remember(self, tracker: str, identifier: str) -> None:
        """So that a resumed run goes on in the same place."""
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
    """The numbers that a finished run comes to."""
    return {
        f"final_{summary.metric}": summary.main_value,
        f"best_{summary.metric}": summary.best_value,
        "total_virtual_time_s": summary.virtual_time_s,
        "params_saved": summary.params_saved,
        "flops_saved": summary.flops_saved,
    }
