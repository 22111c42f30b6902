"""Sub-models of a width, and widths that match measured times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaptcl.records import WorkerRecord
from adaptcl.strategies import Job
from adaptcl.strategies.widths import MatchedWidths, window
from adaptcl.training import Recipe
from adaptcl.units import retention, trace

Jobs = Callable[..., Job]


def test_a_window_is_the_first_units_of_every_layer(with_batch_norm: Jobs) -> None:
    kept = window(with_batch_norm(1, 1).units, width=0.3, first=0)
    # Layers of four and eight units: ⌈1.2⌉ and ⌈2.4⌉.
    assert kept[:4].int().tolist() == [1, 1, 0, 0]
    assert kept[4:].int().tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@given(width=st.floats(1e-6, 1.0))
def test_a_window_has_a_part_of_every_layer_but_never_none(
    with_batch_norm: Jobs, width: float
) -> None:
    units = with_batch_norm(1, 1).units
    kept = window(units, width, first=0)
    for layer in units.layers:
        count, n = int(kept[list(layer.units)].sum()), len(layer.units)
        assert 1 <= count <= n
        assert width * n - 1e-6 <= count < width * n + 1


@given(widths=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)))
def test_a_narrow_sub_model_is_contained_in_a_wider_one(
    with_batch_norm: Jobs, widths: tuple[float, float]
) -> None:
    units = with_batch_norm(1, 1).units
    narrow, wide = (window(units, width, first=0) for width in sorted(widths))
    assert not bool((narrow & ~wide).any())


def test_a_width_that_divides_a_layer_is_not_rounded_up_by_floating_point() -> None:
    units = trace(nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1)), torch.zeros(1, 1))
    assert 0.07 * 100 > 7
    assert int(window(units, 0.07, first=0).sum()) == 7


# Matched to measured times ----------------------------------------------------------------------


def wide_layers(workers: int) -> Job:
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    units = trace(model, torch.zeros(1, 8))
    return Job(units, dict(model.state_dict()), workers, 9, Recipe(), seed=1)


def play(widths: MatchedWidths, job: Job, whole: list[float], overhead: float, rounds: int) -> None:
    """Rounds in which a share of everybody's time does not shrink with the sub-model."""
    for _ in range(rounds):
        records = []
        for worker, seconds in enumerate(whole):
            size = retention(job.units, window(job.units, widths.widths[worker], first=0))
            taken = seconds * (overhead + (1 - overhead) * size)
            records.append(
                WorkerRecord(worker, 0.0, taken, 0.0, taken, size, 0.0, None, None, 0, 0)
            )
        widths.learn(records, ahead=0)


def time_of(widths: MatchedWidths, job: Job, worker: int, whole: float, overhead: float) -> float:
    size = retention(job.units, window(job.units, widths.widths[worker], first=0))
    return whole * (overhead + (1 - overhead) * size)


@pytest.mark.parametrize("overhead", [0.0, 0.3])
def test_two_measurements_make_workers_equally_fast(overhead: float) -> None:
    job = wide_layers(3)
    widths = MatchedWidths(job)
    play(widths, job, [20.0, 15.0, 10.0], overhead, rounds=2)
    times = [time_of(widths, job, w, t, overhead) for w, t in enumerate([20.0, 15.0, 10.0])]
    assert times == pytest.approx([10.0] * 3, rel=0.05)
    assert widths.widths[2] == 1.0


def test_widths_stay_once_they_match_and_follow_a_worker_that_becomes_slower() -> None:
    job = wide_layers(2)
    widths = MatchedWidths(job)
    play(widths, job, [20.0, 10.0], 0.3, rounds=2)
    matched = widths.widths[0]
    play(widths, job, [20.0, 10.0], 0.3, rounds=3)
    assert widths.widths[0] == matched
    play(widths, job, [30.0, 10.0], 0.3, rounds=1)
    assert time_of(widths, job, 0, 30.0, 0.3) == pytest.approx(10.0, rel=0.05)
    play(widths, job, [10.0, 10.0], 0.3, rounds=1)
    assert widths.widths[0] == pytest.approx(1.0, abs=0.05)


def test_a_time_that_no_width_can_reach_ends_at_the_narrowest_level() -> None:
    job = wide_layers(2)
    widths = MatchedWidths(job)
    play(widths, job, [20.0, 10.0], 0.9, rounds=3)
    assert widths.widths[0] == 1 / 16
