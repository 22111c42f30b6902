"""A small experiment on the shipped digits, and made-up results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adaptcl.config.config import Config
from adaptcl.records import RoundRecord, WorkerRecord, summarise
from paper.experiment import Experiment, ExperimentRow, parse_experiment
from paper.result import Provenance, RunResult, Size, round_series, workers_at_changes
from paper.store import recorded_settings

TINY = """
title = "Tiny"
answers = "nothing in the paper"
place = 1
seeds = [1]
overview = ["digits"]

[settings]
model = "small"
data = "digits"
workers = 4
rounds = 4
batch_size = 32
evaluate_every = 2
pruning_interval = 2
max_importance_lost = 1.0
bandwidth_max = 0.05

[[parts]]
title = "digits"
columns = ["accuracy", "best_accuracy", "minutes", "delta", "speed_up"]
figures = ["accuracy-over-time", "round-time"]
baseline = { strategy = "fedavg-s" }

[[parts.rows]]
label = "FedAVG-S"
strategy = "fedavg-s"
paper = { accuracy = 87.18, minutes = 279.37 }

[[parts.rows]]
label = "AdaptCL"
strategy = "adaptcl"
seeds = [1, 2]
priority = 1
paper = { accuracy = 87.35, minutes = 171.8 }

[[claims]]
text = "AdaptCL is faster"
part = "digits"
row = "AdaptCL"
least_delta = -1.0
least_speed_up = 1.5
least_seeds = 2
"""

MADE_UP = Provenance("0", "none", "0", "made up for a test", "float32", "0" * 64)


@pytest.fixture(scope="session")
def tiny_text() -> str:
    return TINY


@pytest.fixture(scope="session")
def tiny() -> Experiment:
    return parse_experiment("tiny", TINY)


@pytest.fixture(scope="session")
def nobody() -> Provenance:
    """The provenance of results that nobody ran."""
    return MADE_UP


@pytest.fixture
def changed() -> Callable[..., Config]:
    """The configuration of a row's run with other settings."""

    def config(row: ExperimentRow, seed: int = 1, **settings: Any) -> Config:
        return replace(row, values={**row.values, **settings}).config(seed)

    return config


@pytest.fixture(scope="session")
def make_up() -> Callable[..., RunResult]:
    return made_up


def made_up(
    config: Config,
    *,
    accuracy: float = 0.8,
    round_s: float = 60.0,
    provenance: Provenance = MADE_UP,
    **changes: Any,
) -> RunResult:
    """A result with round numbers, for tables and figures to be made of."""
    job = config.job
    prunes = job.strategy == "adaptcl"
    records = [
        _record(config, number, accuracy, round_s, prunes) for number in range(1, job.rounds + 1)
    ]
    kept = [w.retention for w in records[-1].workers]
    summary = summarise(
        records,
        strategy=job.strategy,
        wall_time_s=100.0,
        retention=tuple(kept),
        params_saved=1 - sum(kept) / len(kept),
        flops_saved=1 - sum(kept) / len(kept),
        seed=job.seed,
        workers=job.workers,
        model=job.model,
        data=job.data,
    )
    whole = Size(1_000_000, 2_000_000, 4_000_000)
    sizes = tuple(Size(*(int(part * each) for part in (1e6, 2e6, 4e6))) for each in kept)
    pairs = {r.round: 0.9 for r in records if r.similarity is not None}
    values: dict[str, Any] = {
        "settings": recorded_settings(config.values()),
        "provenance": provenance,
        "smoke": False,
        "summary": summary,
        "whole": whole,
        "sub_models": sizes,
        "course": round_series([_with_variants(record, accuracy) for record in records]),
        "workers": workers_at_changes(records, pairs),
    }
    return RunResult(**{**values, **changes})


def _with_variants(record: RoundRecord, accuracy: float) -> RoundRecord:
    fresh = {"fresh": accuracy / 2} if record.round == 1 else {}
    return replace(record, variants={"averaged": accuracy + 0.01, **fresh})


def _record(
    config: Config, number: int, accuracy: float, round_s: float, prunes: bool
) -> RoundRecord:
    job = config.job
    interval = config.strategy.pruning_interval if prunes else 10
    prunings = min(3, number // interval) if prunes else 0
    pruned_now = prunes and number % interval == 0 and number // interval <= 3
    slow = [1 - worker / max(1, job.workers - 1) for worker in range(job.workers)]
    workers = tuple(
        WorkerRecord(
            worker,
            send_s=round_s / 4,
            train_s=round_s / 2,
            receive_s=round_s / 4,
            update_time_s=round_s * (1 + slow[worker] / (1 + prunings)) / 2,
            retention=1 - 0.2 * prunings * slow[worker],
            pruned_rate=0.2 * slow[worker] if pruned_now else 0.0,
            bytes_sent=4_000_000,
            bytes_received=4_000_000,
        )
        for worker in range(job.workers)
    )
    measured = number % job.evaluate_every == 0 or number == job.rounds
    return RoundRecord(
        round=number,
        virtual_time_s=number * round_s,
        accuracy=accuracy * (1 - math.exp(-6 * number / job.rounds)) if measured else None,
        heterogeneity=0.5 / (1 + prunings),
        workers=workers,
        similarity=0.8 if pruned_now else None,
        bytes_sent=sum(w.bytes_sent for w in workers),
        bytes_received=sum(w.bytes_received for w in workers),
    )
