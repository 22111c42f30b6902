"""What a run leaves behind, as types: one record a round, one summary a run.

These are the lines of `rounds.jsonl` and the content of `summary.json`. Other tools read the
field names, so a field is never renamed; new ones may be added.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
    heterogeneity: float | None
    """The paper's H over the workers of this round; None while one of them has no update time yet,
    as in the first rounds without a barrier."""
    workers: tuple[WorkerRecord, ...]
    similarity: float | None = None
    """Mean similarity over all pairs of sub-models, in rounds where somebody pruned."""
    missing: tuple[int, ...] = ()
    """Workers this round closed without: given its task and late or lost, or still busy with an
    earlier one."""
    participants: tuple[int, ...] = ()
    """Workers drawn to take part in this round; empty where all were asked."""
    bytes_sent: int = 0
    """Bytes from server to workers for all tasks that ended since the round before, also for those
    that came to nothing."""
    bytes_received: int = 0
    """Bytes of all updates that arrived since the round before, used or not."""

    def to_json(self) -> dict[str, Any]:
        """The object written to `rounds.jsonl`."""
        values = dataclasses.asdict(self)
        for worker in values["workers"]:
            # JSON has no word for a loss that has left all numbers behind.
            if worker["loss_jump"] is not None and not math.isfinite(worker["loss_jump"]):
                worker["loss_jump"] = None
        return values

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


def first_and_last_heterogeneity(found: Iterable[float | None]) -> tuple[float, float]:
    """Of the rounds in which it is known; 0, as of a single worker, where it never is."""
    known = [each for each in found if each is not None] or [0.0]
    return known[0], known[-1]


def bytes_moved(records: Sequence[RoundRecord]) -> tuple[int, int]:
    """Bytes sent and received in these rounds, all workers together."""
    return sum(r.bytes_sent for r in records), sum(r.bytes_received for r in records)


_BY_WORKER_OR_CLASS = ("retention", "updates", "accuracy_by_class", "accuracy_by_worker")
"""Those figures of a summary that JSON gives back as lists."""


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
    """Of the first round in which all workers had an update time."""
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
    """Over the whole run, all workers together: of every task that has ended and of every update
    that has arrived, also where it was dropped or came to nothing."""
    updates: tuple[int, ...] = ()
    """By worker, how many of its updates were used: who took part, and who hardly did."""
    accuracy_by_class: tuple[float | None, ...] = ()
    """Of the model at the end, on the test samples of each class; None where there are none."""
    accuracy_by_worker: tuple[float | None, ...] = ()
    """Of the same model, on test data with each worker's shares of the classes. Empty where the
    workers' labels are not known, as across machines."""

    @property
    def worst_class_accuracy(self) -> float | None:
        """Of the class that is recognised worst; None where that is not on record."""
        return min((each for each in self.accuracy_by_class if each is not None), default=None)

    @property
    def least_worker_accuracy(self) -> float | None:
        """Of the worker whose classes are recognised worst; None where that is not on record."""
        return min((each for each in self.accuracy_by_worker if each is not None), default=None)

    @property
    def mean_worker_accuracy(self) -> float | None:
        """The mean over workers, however many samples each has; None if it is not on record."""
        known = [each for each in self.accuracy_by_worker if each is not None]
        return fmean(known) if known else None

    def to_json(self) -> dict[str, Any]:
        """The object written to `summary.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Read back what `to_json` gave, refusing anything else."""
        try:
            lists = {name: tuple(values.get(name, ())) for name in _BY_WORKER_OR_CLASS}
            return cls(**{**values, **lists})
        except (AttributeError, KeyError, TypeError) as error:
            raise RunFolderError(f"summary.json is not a summary: {error}") from None


def summarise(records: Sequence[RoundRecord], **known: Any) -> Summary:
    """The figures of a run from its rounds, and those that the rounds do not tell."""
    measured = [r for r in records if r.accuracy is not None]
    best = max(measured, key=lambda r: (r.accuracy or 0.0, -r.round))
    sent, received = bytes_moved(records)
    first, last = first_and_last_heterogeneity(r.heterogeneity for r in records)
    used = Counter(w.worker for r in records for w in r.workers)
    return Summary(
        accuracy=measured[-1].accuracy or 0.0,
        best_accuracy=best.accuracy or 0.0,
        best_round=best.round,
        best_virtual_time_s=best.virtual_time_s,
        rounds=records[-1].round,
        virtual_time_s=records[-1].virtual_time_s,
        heterogeneity_first=first,
        heterogeneity_last=last,
        bytes_sent=sent,
        bytes_received=received,
        updates=tuple(used[worker] for worker in range(known["workers"])),
        **known,
    )
