"""AdaptCL where only some of the workers take part in each round: real training on the digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.runs.result import FinishedRun

Learn = Callable[..., FinishedRun]
SETTINGS: dict[str, Any] = {
    "workers": 9,
    "participants": 3,
    "rounds": 45,
    "first_pruning": 5,
    "pruning_interval": 5,
    "width_multiple": 1,
    "max_importance_lost": 1.0,
    "evaluate_every": 45,
    "epochs": 0.2,
    "sigma": 3.0,
    "bandwidth_max": 0.02,
    "train_time": 1.0,
}


@pytest.fixture(scope="module")
def run(learn: Learn) -> FinishedRun:
    return learn("adaptcl", **SETTINGS)


def last_times(result: FinishedRun) -> list[float]:
    """Each worker's update time when it last took part."""
    times = {w.worker: w.update_time_s for record in result.rounds for w in record.workers}
    return [times[worker] for worker in sorted(times)]


def first_times(result: FinishedRun) -> list[float]:
    times: dict[int, float] = {}
    for record in result.rounds:
        for worker in record.workers:
            times.setdefault(worker.worker, worker.update_time_s)
    return [times[worker] for worker in sorted(times)]


@pytest.mark.slow
def test_all_workers_become_equally_fast_though_few_are_seen_in_a_round(run: FinishedRun) -> None:
    assert len(first_times(run)) == 9
    assert heterogeneity(first_times(run)) > 0.4
    assert heterogeneity(last_times(run)) < 0.12
    assert run.summary.retention[8] == 1.0
    assert run.summary.retention[0] == min(run.summary.retention) < 0.5


def test_only_who_takes_part_is_measured_and_pruned(run: FinishedRun) -> None:
    retention = dict.fromkeys(range(9), 1.0)
    for record in run.rounds:
        assert [w.worker for w in record.workers] == list(record.participants)
        assert len(record.participants) == 3
        for worker in record.workers:
            # Between two of its rounds nobody's sub-model changes.
            if worker.pruned_rate == 0:
                assert worker.retention == retention[worker.worker]
            else:
                assert worker.retention < retention[worker.worker]
            retention[worker.worker] = worker.retention
    assert tuple(retention.values()) == run.summary.retention


def test_a_pruning_that_was_decided_on_is_carried_out_in_the_next_round_of_the_worker(
    run: FinishedRun,
) -> None:
    pruned = {r.round for r in run.rounds if any(w.pruned_rate for w in r.workers)}
    # With everybody in every round these would be multiples of the interval only.
    assert any(number % 5 for number in pruned)
    assert min(pruned) >= 5


@pytest.mark.slow
def test_rates_of_a_table_that_a_worker_missed_are_made_up_for(learn: Learn) -> None:
    table = ((0.2,) * 9, (0.3,) * 9)
    result = learn("adaptcl", **{**SETTINGS, "pruned_rates": table})
    for retention in result.summary.retention:
        assert retention == pytest.approx(0.8 * 0.7, abs=0.05)
    rates = {round(w.pruned_rate, 6) for r in result.rounds for w in r.workers if w.pruned_rate}
    assert rates <= {0.2, 0.3, 0.44}
