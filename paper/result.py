"""What is kept of a run for good: one small JSON file, enough for every table and figure.

Series are kept round by round; what concerns single workers only where it changes: in the first
and the last round, in each round with a pruning, and in the round after it, which is the first
with the new update times.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl.errors import AdaptCLError
from adaptcl.records import RoundRecord, Summary
from adaptcl.storage import written_whole
from paper.provenance import Provenance

FORMAT = 1
"""Of the JSON file; another number is refused."""


class ResultError(AdaptCLError):
    """A result file is damaged, or does not belong with the others."""


@dataclass(frozen=True)
class RunCourse:
    """A run round by round, as columns of equal length."""

    round: tuple[int, ...]
    virtual_time_s: tuple[float, ...]
    accuracy: tuple[float | None, ...]
    """None where it was not measured."""
    heterogeneity: tuple[float | None, ...]
    """None while a worker had no update time yet."""
    averaged_accuracy: tuple[float | None, ...] = ()
    """Of the mean of the latest models, measured beside; empty in results that are older."""
    fresh_accuracy: tuple[float | None, ...] = ()
    """Of the model with statistics measured anew, likewise."""


@dataclass(frozen=True)
class WorkersAt:
    """All workers in one round, by worker."""

    round: int
    update_time_s: tuple[float, ...]
    retention: tuple[float, ...]
    pruned_rate: tuple[float, ...]
    similarity: float | None = None
    """Mean over all pairs of sub-models, where somebody pruned."""
    pair_similarity: float | None = None
    """Of the paper's second and fourth worker, which its fixed table prunes alike."""


@dataclass(frozen=True)
class Size:
    """How big a model or sub-model is."""

    parameters: int
    flops: int
    """Of the forward pass for one sample."""
    bytes: int
    """Of the model as it travels."""


@dataclass(frozen=True)
class RunResult:
    """One finished run."""

    settings: Mapping[str, Any]
    """All that have an effect, by name."""
    provenance: Provenance
    smoke: bool
    """Whether the run was cut short to try something out; such a result answers nothing."""
    summary: Summary
    whole: Size
    """The global model."""
    sub_models: tuple[Size, ...]
    """Each worker's, at the end."""
    course: RunCourse
    workers: tuple[WorkersAt, ...]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        return {"format": FORMAT, "kind": "run", **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        """Read back what `to_json` gave."""
        rest = {k: v for k, v in values.items() if k not in ("format", "kind")}
        return cls(
            **{
                **rest,
                "provenance": Provenance(**values["provenance"]),
                "summary": Summary.from_json(values["summary"]),
                "whole": Size(**values["whole"]),
                "sub_models": tuple(Size(**each) for each in values["sub_models"]),
                "course": RunCourse(**{k: tuple(v) for k, v in values["course"].items()}),
                "workers": tuple(_workers_from_json(each) for each in values["workers"]),
                "warnings": tuple(values["warnings"]),
            }
        )


def course(
    records: Sequence[RoundRecord], averaged: Mapping[int, float], fresh: Mapping[int, float]
) -> RunCourse:
    """The columns of some rounds.

    By round, `averaged` has the accuracy of the mean model and `fresh` that of the model with
    statistics measured anew.
    """
    return RunCourse(
        tuple(r.round for r in records),
        tuple(round(r.virtual_time_s, 3) for r in records),
        tuple(None if r.accuracy is None else round(r.accuracy, 6) for r in records),
        tuple(None if r.heterogeneity is None else round(r.heterogeneity, 5) for r in records),
        _by_round(records, averaged),
        _by_round(records, fresh),
    )


def _by_round(
    records: Sequence[RoundRecord], measured: Mapping[int, float]
) -> tuple[float | None, ...]:
    return tuple(round(measured[r.round], 6) if r.round in measured else None for r in records)


def workers_where_they_change(
    records: Sequence[RoundRecord], pair_similarity: Mapping[int, float]
) -> tuple[WorkersAt, ...]:
    """The workers in the rounds that tell something new about them."""
    pruned = [any(w.pruned_rate for w in record.workers) for record in records]
    after_pruning = [False, *pruned[:-1]]
    first_or_last = (0, len(records) - 1)
    return tuple(
        _workers_at(record, pair_similarity.get(record.round))
        for place, record in enumerate(records)
        if pruned[place] or after_pruning[place] or place in first_or_last
    )


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result's object so that the file appears whole or not at all."""
    # A line for each key, so that a difference between two files can be read.
    lines = (
        f"{json.dumps(name)}: {json.dumps(result[name], sort_keys=True, ensure_ascii=False)}"
        for name in sorted(result)
    )
    try:
        with written_whole(path) as file:
            file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}.") from None


def _workers_at(record: RoundRecord, pair_similarity: float | None) -> WorkersAt:
    # A fast worker may appear twice in a round without a barrier: its latest update counts.
    last = sorted({w.worker: w for w in record.workers}.values(), key=lambda w: w.worker)
    return WorkersAt(
        record.round,
        tuple(round(w.update_time_s, 3) for w in last),
        tuple(round(w.retention, 5) for w in last),
        tuple(round(w.pruned_rate, 5) for w in last),
        record.similarity,
        pair_similarity,
    )


def _workers_from_json(values: Mapping[str, Any]) -> WorkersAt:
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return WorkersAt(**rest)
