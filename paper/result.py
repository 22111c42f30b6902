"""The result of a run, one small JSON file, and its provenance: code, machine and data.

A result is enough for every table and figure. It holds series round by round. It holds the workers
only in rounds that say something new about them: the first and the last, each round with a pruning,
and the round after it, which is the first with the new update times.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import adaptcl
from adaptcl.data import DATASETS
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.files.provenance import commit, device_name
from adaptcl.storage import written_whole

_PACKAGE = Path(adaptcl.__file__).parent


@dataclass(frozen=True)
class Provenance:
    """What it takes to reproduce a result."""

    version: str
    commit: str
    torch: str
    device: str
    precision: str
    data_sha256: str


def provenance(device: str, precision: str, data_sha256: str) -> Provenance:
    """The provenance of a result that is made here and now."""
    name = device_name(device)
    cuda = torch.device(device).type == "cuda"
    return Provenance(
        version=adaptcl.__version__,
        commit=commit(),
        torch=torch.__version__,
        device=name,
        precision=precision if cuda else "float32",
        data_sha256=data_sha256,
    )


def data_sha256(name: str, data_dir: Path | None) -> str:
    """The SHA-256 of a data set's file, or of all files of its folder in order."""
    if name not in DATASETS:
        raise SettingError(f"An experiment needs data known by name, but its data is {name!r}.")
    archive = DATASETS[name].archive
    place = _SHIPPED[name] if archive is None else archive.locate(name, data_dir)
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


_SHIPPED = {
    "digits": _PACKAGE / "data" / "files" / "digits.npz",
    "fashion": _PACKAGE / "data" / "files" / "fashion-mnist-8000.npz",
}


FORMAT = 1
"""The version of the JSON file; another number is refused."""


class ResultError(AdaptCLError):
    """A result file is damaged, or does not belong with the others."""


@dataclass(frozen=True)
class RoundSeries:
    """A run by round, as columns of equal length."""

    round: tuple[int, ...]
    virtual_time_s: tuple[float, ...]
    accuracy: tuple[float | None, ...]
    """None in rounds without a test."""
    heterogeneity: tuple[float | None, ...]
    """None while a worker has no update time yet."""
    averaged_accuracy: tuple[float | None, ...] = ()
    """Of the mean of the latest models; empty in older results."""
    fresh_accuracy: tuple[float | None, ...] = ()
    """Of the model with fresh batch-norm statistics; empty in older results."""


@dataclass(frozen=True)
class WorkersInRound:
    """All workers in one round."""

    round: int
    update_time_s: tuple[float, ...]
    retention: tuple[float, ...]
    pruned_rate: tuple[float, ...]
    similarity: float | None = None
    """Mean over all pairs of sub-models, in rounds with a pruning."""
    pair_similarity: float | None = None
    """Of the paper's second and fourth worker, which its fixed rates prune alike."""


@dataclass(frozen=True)
class Size:
    """The size of a model or sub-model."""

    parameters: int
    flops: int
    """Of the forward pass for one sample."""
    bytes: int
    """Of the model as it is sent."""


@dataclass(frozen=True)
class RunResult:
    """One finished run."""

    settings: Mapping[str, Any]
    """All settings but those of where it was computed."""
    provenance: Provenance
    smoke: bool
    """Whether the run was cut short to try something; such a result answers nothing."""
    summary: Summary
    whole: Size
    """The global model."""
    sub_models: tuple[Size, ...]
    """Each worker's at the end."""
    course: RoundSeries
    workers: tuple[WorkersInRound, ...]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": "run", **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        rest = {k: v for k, v in values.items() if k not in ("format", "kind")}
        return cls(
            **{
                **rest,
                "provenance": Provenance(**values["provenance"]),
                "summary": Summary.from_json(values["summary"]),
                "whole": Size(**values["whole"]),
                "sub_models": tuple(Size(**each) for each in values["sub_models"]),
                "course": RoundSeries(**{k: tuple(v) for k, v in values["course"].items()}),
                "workers": tuple(_workers_from_json(each) for each in values["workers"]),
                "warnings": tuple(values["warnings"]),
            }
        )


def round_series(records: Sequence[RoundRecord]) -> RoundSeries:
    """Turn rounds into columns."""
    return RoundSeries(
        tuple(r.round for r in records),
        tuple(round(r.virtual_time_s, 3) for r in records),
        tuple(None if r.accuracy is None else round(r.accuracy, 6) for r in records),
        tuple(None if r.heterogeneity is None else round(r.heterogeneity, 5) for r in records),
        _variant(records, "averaged"),
        _variant(records, "fresh"),
    )


def _variant(records: Sequence[RoundRecord], name: str) -> tuple[float | None, ...]:
    """The accuracy of the model in another form, round by round."""
    values = (record.variants.get(name) for record in records)
    return tuple(None if value is None else round(value, 6) for value in values)


def workers_at_changes(
    records: Sequence[RoundRecord], pair_similarity: Mapping[int, float]
) -> tuple[WorkersInRound, ...]:
    """The workers in rounds that say something new about them."""
    pruned = [any(w.pruned_rate for w in record.workers) for record in records]
    after_pruning = [False, *pruned[:-1]]
    first_or_last = (0, len(records) - 1)
    return tuple(
        _workers_in(record, pair_similarity.get(record.round))
        for place, record in enumerate(records)
        if pruned[place] or after_pruning[place] or place in first_or_last
    )


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result so that its file appears whole or not at all."""
    # One line a key, so that a difference between two files is readable.
    lines = (
        f"{json.dumps(name)}: {json.dumps(result[name], sort_keys=True, ensure_ascii=False)}"
        for name in sorted(result)
    )
    with written_whole(path, ResultError) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _workers_in(record: RoundRecord, pair_similarity: float | None) -> WorkersInRound:
    # Without a barrier a fast worker may appear twice in a round: its latest update counts.
    last = sorted({w.worker: w for w in record.workers}.values(), key=lambda w: w.worker)
    return WorkersInRound(
        record.round,
        tuple(round(w.update_time_s, 3) for w in last),
        tuple(round(w.retention, 5) for w in last),
        tuple(round(w.pruned_rate, 5) for w in last),
        record.similarity,
        pair_similarity,
    )


def _workers_from_json(values: Mapping[str, Any]) -> WorkersInRound:
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return WorkersInRound(**rest)
