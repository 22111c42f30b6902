from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.records import NO_RECORD, RoundRecord, Summary, WorkerRecord, bytes_moved

FRACTIONS = st.floats(0, 1)
ROUNDS = st.builds(
    RoundRecord,
    accuracy=st.none() | FRACTIONS,
    heterogeneity=FRACTIONS,
    virtual_time_s=st.floats(0, 1e9),
    workers=st.lists(
        st.builds(
            WorkerRecord,
            send_s=FRACTIONS,
            train_s=FRACTIONS,
            receive_s=FRACTIONS,
            update_time_s=FRACTIONS,
            retention=FRACTIONS,
            pruned_rate=FRACTIONS,
            importance_lost=st.none() | FRACTIONS,
            loss_jump=st.none() | FRACTIONS,
            train_loss=st.none() | FRACTIONS,
        ),
        max_size=3,
    ).map(tuple),
    similarity=st.none() | FRACTIONS,
    missing=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    bytes_sent=st.none() | st.integers(0, 2**40),
    bytes_received=st.none() | st.integers(0, 2**40),
    test_loss=st.none() | FRACTIONS,
)
SUMMARY = Summary(
    strategy="adaptcl",
    accuracy=0.8,
    best_accuracy=0.9,
    best_round=3,
    best_virtual_time_s=10.0,
    rounds=4,
    virtual_time_s=20.0,
    wall_time_s=1.0,
    heterogeneity_first=0.3,
    heterogeneity_last=0.1,
    retention=(0.5, 1.0),
    params_saved=0.25,
    flops_saved=0.2,
    seed=1,
    workers=2,
    model="small",
    data="digits",
    bytes_sent=10,
    bytes_received=20,
    updates=(4, 3),
    accuracy_by_class=(0.5, None, 1.0),
    accuracy_by_worker=(0.75, None),
    samples_by_worker=(30, 10),
    labels_by_worker=((30, 0), (4, 6)),
)


@given(ROUNDS)
def test_a_round_is_read_back_as_it_was_written(record: RoundRecord) -> None:
    line = json.dumps(record.to_json())
    assert "\n" not in line
    assert RoundRecord.from_json(json.loads(line)) == record


@pytest.mark.parametrize("jump", [float("inf"), float("nan")])
def test_a_loss_that_has_left_all_numbers_behind_is_written_as_none(jump: float) -> None:
    worker = WorkerRecord(0, 1.0, 1.0, 1.0, 3.0, 0.5, 0.5, 0.5, jump)
    line = json.dumps(RoundRecord(1, 3.0, None, 0.0, (worker,)).to_json(), allow_nan=False)
    assert RoundRecord.from_json(json.loads(line)).workers[0].loss_jump is None


def test_a_summary_is_read_back_as_it_was_written() -> None:
    assert Summary.from_json(json.loads(json.dumps(SUMMARY.to_json()))) == SUMMARY


def test_the_names_other_tools_read_are_there() -> None:
    assert {
        "strategy", "accuracy", "best_accuracy", "rounds", "virtual_time_s", "wall_time_s",
        "heterogeneity_first", "heterogeneity_last", "retention", "params_saved", "flops_saved",
        "seed",
    } <= SUMMARY.to_json().keys()  # fmt: skip
    assert {"round", "virtual_time_s", "accuracy", "heterogeneity", "workers"} <= {
        f.name for f in dataclasses.fields(RoundRecord)
    }
    assert {
        "worker", "send_s", "train_s", "receive_s", "update_time_s", "retention", "pruned_rate",
    } <= {f.name for f in dataclasses.fields(WorkerRecord)}  # fmt: skip


@pytest.mark.parametrize(
    "values", [{}, {"workers": 3}, {"workers": [{}]}, {"workers": [], "colour": 1}, [], 3, "round"]
)
def test_a_line_that_is_no_round_is_refused(values: Any) -> None:
    with pytest.raises(NO_RECORD):
        RoundRecord.from_json(values)


@pytest.mark.parametrize("values", [{}, {"retention": 3}, {"retention": []}, [], None])
def test_what_is_no_summary_is_refused(values: Any) -> None:
    with pytest.raises(NO_RECORD):
        Summary.from_json(values)


def test_bytes_are_those_of_the_rounds_and_not_only_of_the_updates_that_were_used() -> None:
    worker = WorkerRecord(0, 1.0, 1.0, 1.0, 3.0, 0.5, 0.5, bytes_sent=10, bytes_received=7)
    usual = RoundRecord(1, 3.0, None, 0.0, (worker, worker), bytes_sent=50, bytes_received=14)
    nothing_used = dataclasses.replace(usual, workers=(), bytes_sent=10, bytes_received=0)
    assert bytes_moved([]) == (0, 0)
    assert bytes_moved([usual, nothing_used]) == (60, 14)


def test_of_classes_and_workers_the_worst_are_told() -> None:
    assert SUMMARY.worst_class_accuracy == 0.5
    assert (SUMMARY.least_worker_accuracy, SUMMARY.mean_worker_accuracy) == (0.75, 0.75)
