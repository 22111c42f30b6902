"""What a run leaves behind, as types: one record a round, one summary a run.

These are the lines of `rounds.jsonl` and the content of `summary.json`. Other tools read the
field names, so a field is never renamed; new ones may be added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptcl.errors import RunFolderError


@dataclass(frozen=True)
class WorkerRecord:
    """One worker's part in one round. Times are seconds of the run's clock."""

    worker: int
    send_s: float
    train_s: float
    receive_s: float
    update_time_s: float
    """The paper's φ: from the task's sending to the update's arrival."""
    retention: float
    """The paper's γ after this round: the fraction of the model's parameters kept."""
    pruned_rate: float
    """The paper's P carried out in this round; negative where the sub-model grew."""
    importance_lost: float | None = None
    """Share of the importance of its units that the worker cut away, where it pruned."""
    loss_jump: float | None = None
    """Loss just after the pruning less the loss just before it, where it pruned."""
    bytes_sent: int = 0
    """Bytes from server to worker."""
    bytes_received: int = 0
    """Bytes from worker to server."""


@dataclass(frozen=True)
class RoundRecord:
    """One finished round (for asynchronous strategies: as many merges as there are workers)."""

    round: int
    virtual_time_s: float
    accuracy: float | None
    """Top-1 accuracy on the test data as a fraction, where it was measured."""
    heterogeneity: float
    """The paper's H over the workers of this round."""
    workers: tuple[WorkerRecord, ...]
    similarity: float | None = None
    """Mean similarity over all pairs of sub-models, in rounds where somebody pruned."""
    missing: tuple[int, ...] = ()
    """Workers this round closed without: given its task and late or lost, or still busy with an
    earlier one."""
    participants: tuple[int, ...] = ()
    """Workers drawn to take part in this round; empty where all were asked."""

    def to_json(self) -> dict[str, Any]:
        """The object written to `rounds.jsonl`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundRecord:
        """Read back what `to_json` gave, refusing anything else."""
        try:
            workers = tuple(WorkerRecord(**w) for w in values["workers"])
            lists = {name: tuple(values.get(name, ())) for name in ("missing", "participants")}
            return cls(**{**values, **lists, "workers": workers})
        except (KeyError, TypeError) as error:
            raise RunFolderError(
                f"rounds.jsonl holds a line that is not a round: {error}"
            ) from None


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run."""

    strategy: str
    accuracy: float
    best_accuracy: float
    best_round: int
    best_virtual_time_s: float
    """When the best accuracy was reached, on the run's clock."""
    rounds: int
    virtual_time_s: float
    wall_time_s: float
    heterogeneity_first: float
    heterogeneity_last: float
    retention: tuple[float, ...]
    """By worker, at the end."""
    params_saved: float
    """1 − mean parameters of the workers' final sub-models, as a fraction of the whole model."""
    flops_saved: float
    seed: int
    workers: int
    model: str
    data: str
    bytes_sent: int
    bytes_received: int
    """Over the whole run, all workers together."""
    updates: tuple[int, ...] = ()
    """By worker, how many of its updates were used: who took part, and who hardly did."""

    def to_json(self) -> dict[str, Any]:
        """The object written to `summary.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Read back what `to_json` gave, refusing anything else."""
        try:
            lists = {name: tuple(values.get(name, ())) for name in ("retention", "updates")}
            return cls(**{**values, **lists})
        except (AttributeError, KeyError, TypeError) as error:
            raise RunFolderError(f"summary.json is not a summary: {error}") from None
