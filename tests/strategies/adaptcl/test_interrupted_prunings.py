"""A pruning that was decided on is carried out once, whatever happens to the worker meanwhile."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.units import retention

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Lines

TABLE = ((0.5, 0.3, 0.0), (0.2, 0.0, 0.1))
BOTH = pytest.approx(1 - 0.5 * 0.8)


def told(run: Engine, worker: int) -> float:
    """How much a worker is to prune by the task that it has now."""
    pruning = run.open[worker].pruning
    return 0.0 if pruning is None else pruning.rate


def carried_out(run: Engine, worker: int) -> list[float]:
    """The rates on record for a worker, in the order in which they were carried out."""
    records = [record for closed in run.closed for record in closed.workers]
    return [r.pruned_rate for r in records if r.worker == worker and r.pruned_rate]


def without(run: Engine, worker: int, rounds: int) -> None:
    """Close so many rounds in which all others answer and this worker does not."""
    for _ in range(rounds):
        this = run.strategy.round
        for other in sorted(run.open.keys() - {worker}):
            run.answer(other)
        if run.strategy.round == this:
            run.expire()


@pytest.mark.parametrize("chosen", [{}, {"pruned_rates": TABLE}])
def test_who_is_lost_while_it_prunes_is_told_again_when_it_is_back(
    engine: Engines, line: Lines, chosen: dict[str, Any]
) -> None:
    calm, run = (engine(line(60, 40, 20), **chosen).until(3) for _ in range(2))
    rate = told(run, 0)
    run.lose(0)
    assert run.retentions()[0] == 1
    run.join(0)
    assert told(run, 0) == rate > 0
    run.lose(0)
    run.join(0)
    assert run.until(25).closed == calm.until(25).closed


def test_or_some_rounds_later(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20)).until(3)
    rate = told(run, 0)
    run.lose(0)
    run.until(5).join(0)
    assert told(run, 0) == rate
    run.until(6)
    assert carried_out(run, 0) == [rate]


def test_rows_of_a_table_that_it_was_away_for_are_carried_out_together(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(1, 1, 1), pruned_rates=TABLE).until(3)
    run.lose(0)
    run.until(8).join(0)
    assert told(run, 0) == BOTH
    run.until(20)
    assert carried_out(run, 0) == [BOTH]
    assert run.retentions() == pytest.approx([0.4, 0.7, 0.9], abs=0.03)


def test_what_was_learned_of_it_before_it_left_still_counts_after_the_next_decision(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20)).until(3)
    rate = told(run, 0)
    run.lose(0)
    run.until(8).join(0)
    assert told(run, 0) == rate
    run.until(40)
    assert run.spread()[-1] < 0.03
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.03)


def test_an_update_that_is_dropped_for_being_late_has_pruned_all_the_same(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(1, 1, 1), pruned_rates=TABLE, deadline=1.5, late_updates="drop").until(3)
    without(run, 0, rounds=1)
    assert run.answer(0).dropped
    assert run.open[0].round == 4
    assert told(run, 0) == 0
    assert retention(run.strategy.units, run.open[0].kept) == pytest.approx(0.5, abs=0.03)
    run.until(20)
    assert carried_out(run, 0) == [0.2]
    assert run.retentions() == pytest.approx([0.4, 0.7, 0.9], abs=0.03)


def test_who_becomes_too_slow_for_the_deadline_is_pruned_until_its_updates_are_used_again(
    engine: Engines, changing: Lines
) -> None:
    times = changing((20, 20, 20), (90, 20, 20), at=3)
    run = engine(times, deadline=1.3, late_updates="drop").until(3)
    while run.strategy.round < 40:
        this = run.strategy.round
        is_late = run.open[0].round < this
        # 39 s are the deadline of the others' 30: two of their rounds while it is at one of its.
        too_slow = times(0, run.retentions()[0], this) > 39
        for worker in (1, 2):
            run.answer(worker)
        if run.strategy.round == this and not too_slow:
            run.answer(0)
        elif run.strategy.round == this:
            run.expire()
        elif is_late:
            run.answer(0)
    used = [0 in (record.worker for record in closed.workers) for closed in run.closed]
    assert not any(used[2:6])
    assert all(used[-10:])
    assert run.retentions()[0] == pytest.approx(20 / 90, abs=0.03)
    assert run.retentions()[1:] == [1, 1]


def test_a_row_that_comes_up_while_the_one_before_is_late_follows_it(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(1, 1, 1), pruned_rates=TABLE, deadline=1.5).until(3)
    without(run, 0, rounds=4)
    assert told(run, 0) == 0.5
    run.until(20)
    assert carried_out(run, 0) == [0.5, 0.2]


def test_or_joins_it_if_it_is_lost_after_all(engine: Engines, line: Lines) -> None:
    run = engine(line(1, 1, 1), pruned_rates=TABLE, deadline=1.5).until(3)
    without(run, 0, rounds=4)
    run.lose(0)
    run.join(0)
    assert told(run, 0) == BOTH
    run.until(20)
    assert carried_out(run, 0) == [BOTH]


def test_nothing_is_decided_for_a_worker_whose_pruning_is_under_way(
    engine: Engines, line: Lines
) -> None:
    # Its update of round 2 counts in round 3, so there is a new time of its whole model.
    run = engine(line(60, 40, 20), deadline=1.5).until(2)
    without(run, 0, rounds=1)
    run.until(4)
    rate = told(run, 0)
    assert rate > 0
    without(run, 0, rounds=3)
    assert run.strategy.round == 7
    run.answer(0)
    without(run, 0, rounds=1)
    assert carried_out(run, 0) == [rate]
    assert told(run, 0) == 0


def test_times_of_the_sub_model_before_a_pruning_are_not_taken_for_those_after_it(
    engine: Engines, line: Lines
) -> None:
    calm, run = (engine(line(60, 40, 20), deadline=1.5).until(2) for _ in range(2))
    # The decision for round 3 comes before this update of the whole model, the pruning after it.
    without(run, 0, rounds=1)
    for each in (calm, run):
        each.until(30)
    assert run.spread()[-1] < 0.03
    assert carried_out(run, 0) == pytest.approx(carried_out(calm, 0))


# Growing ---------------------------------------------------------------------------------------


@pytest.fixture
def growing(engine: Engines, changing: Lines) -> Engine:
    """A run in whose present round worker 0 was given a larger sub-model."""
    run = engine(changing((90, 30, 30), (30, 30, 30), at=19), grow=True).until(19)
    while torch.equal(run.open[0].kept, run.strategy.sub_models()[0]):
        run.until(run.strategy.round + 1)
    return run


def test_who_is_lost_while_it_grows_grows_once(growing: Engine) -> None:
    small, large = growing.strategy.sub_models()[0], growing.open[0].kept
    assert small.sum() < large.sum() < large.numel()
    for _ in range(2):
        growing.lose(0)
        assert torch.equal(growing.strategy.sub_models()[0], small)
        growing.join(0)
        assert torch.equal(growing.open[0].kept, large)
    before = carried_out(growing, 0)
    growing.until(growing.strategy.round + 1)
    assert torch.equal(growing.strategy.sub_models()[0], large)
    (rate,) = carried_out(growing, 0)[len(before) :]
    assert rate < 0
    assert torch.equal(growing.open[0].kept, large)


def test_a_growing_that_is_lost_is_in_the_checkpoint(growing: Engine, tmp_path: Path) -> None:
    growing.lose(0)
    growing.until(growing.strategy.round + 1)
    after = growing.resumed(tmp_path)
    for run in (growing, after):
        run.join(0)
        run.until(60)
    assert after.closed == growing.closed
    assert growing.retentions()[0] == 1


# Checkpoints -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late_updates", "chosen", "lost"),
    [
        ("count", {}, False),
        ("drop", {}, True),
        ("count", {"pruned_rates": TABLE}, True),
        ("drop", {"pruned_rates": TABLE}, False),
    ],
)
def test_a_run_goes_on_from_a_checkpoint_taken_while_a_worker_is_late_with_its_pruning(
    engine: Engines,
    line: Lines,
    tmp_path: Path,
    late_updates: str,
    chosen: dict[str, Any],
    lost: bool,
) -> None:
    run = engine(line(60, 40, 20), deadline=1.5, late_updates=late_updates, **chosen).until(3)
    without(run, 0, rounds=2)
    after = run.resumed(tmp_path)
    for each in (run, after):
        if lost:
            each.lose(0)
            each.join(0)
        each.until(25)
    assert after.closed == run.closed
    assert run.retentions()[0] < 0.45
    one, other = run.strategy.model(), after.strategy.model()
    assert all(torch.equal(one[name], other[name]) for name in one)


# Anything --------------------------------------------------------------------------------------

HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["answer", "answer", "answer", "lose", "join", "expire"]), st.integers(0, 2)
    ),
    max_size=60,
)
LATE_UPDATES = st.sampled_from(["count", "drop"])


def happen(run: Engine, what: str, worker: int) -> None:
    if what == "answer" and worker in run.open:
        run.answer(worker)
    elif what == "lose":
        run.lose(worker)
    elif what == "join":
        run.join(worker)
    elif what == "expire":
        run.expire()


def calm_down(run: Engine, rounds: int) -> None:
    """Everybody comes back, and answers in turn for so many rounds."""
    for worker in range(3):
        run.join(worker)
    end = run.strategy.round + rounds
    while run.strategy.round < end:
        for worker in sorted(run.open):
            run.answer(worker)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(happenings=HAPPENINGS, late_updates=LATE_UPDATES, stop=st.integers(1, 6))
def test_whatever_happens_every_worker_carries_out_its_rates_of_the_table_once(
    engine: Engines, line: Lines, happenings: list[tuple[str, int]], late_updates: str, stop: int
) -> None:
    chosen = {"pruning_interval": 2, "deadline": 1.5, "late_updates": late_updates}
    run = engine(line(1, 1, 1), pruned_rates=TABLE, **chosen)
    is_resumed = False
    for what, worker in happenings:
        happen(run, what, worker)
        # A checkpoint is taken just when a round has closed.
        if not is_resumed and len(run.closed) == stop:
            is_resumed = True
            with TemporaryDirectory() as folder:
                run = run.resumed(Path(folder))
    calm_down(run, rounds=8)
    for worker, rates in enumerate(zip(*TABLE, strict=True)):
        wanted = math.prod(1 - rate for rate in rates)
        if late_updates == "count":  # or prunings may be in updates that are on no record
            on_record = math.prod(1 - rate for rate in carried_out(run, worker))
            assert on_record == pytest.approx(wanted)
        assert run.retentions()[worker] == pytest.approx(wanted, abs=0.03)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(happenings=HAPPENINGS, late_updates=LATE_UPDATES, grow=st.booleans())
def test_whatever_happens_all_workers_become_equally_fast_in_the_end(
    engine: Engines, line: Lines, happenings: list[tuple[str, int]], late_updates: str, grow: bool
) -> None:
    run = engine(line(60, 40, 20), deadline=1.5, late_updates=late_updates, grow=grow)
    for what, worker in happenings:
        happen(run, what, worker)
    calm_down(run, rounds=30)
    assert (
        heterogeneity([10 + s * k for s, k in zip((60, 40, 20), run.retentions(), strict=True)])
        < 0.05
    )
