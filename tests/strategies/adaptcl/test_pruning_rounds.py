"""When workers prune, and how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from adaptcl.errors import SettingError
from adaptcl.runs.result import FinishedRun

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engines, Lines

TABLE = ((0.5, 0.3, 0.0), (0.2, 0.0, 0.1))


def test_whoever_is_slower_prunes_in_every_interval_th_round_until_all_are_equal(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20)).until(25)
    assert set(run.rates()) <= {3, 6, 9, 12, 15, 18, 21, 24}
    # (70 − 30) / (2·70) and (50 − 30) / (2·50).
    assert run.rates()[3] == pytest.approx([2 / 7, 0.2, 0])
    assert run.spread()[0] > 0.4
    assert run.spread()[-1] < 0.03
    assert run.retentions()[2] == 1
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.03)
    assert run.retentions()[1] == pytest.approx(20 / 40, abs=0.03)


def test_the_first_pruning_can_come_before_one_interval_has_passed(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), first_pruning=2).until(12)
    assert set(run.rates()) <= {2, 5, 8, 11}
    assert run.rates()[2] == pytest.approx([2 / 7, 0.2, 0])


def test_or_after_more_than_one_interval(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20), first_pruning=7).until(12)
    assert sorted(run.rates())[:2] == [7, 10]


def test_there_is_nothing_to_prune_by_in_the_first_round(engine: Engines, line: Lines) -> None:
    with pytest.raises(SettingError, match="nothing is measured yet"):
        engine(line(60, 40, 20), first_pruning=1)


def test_the_pruning_is_part_of_the_task_of_the_round(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 20)).until(3)
    one, _, fastest = run.tasks[-3:]
    assert [task.round for task in run.tasks[-3:]] == [3, 3, 3]
    assert one.pruning is not None
    assert one.pruning.rate == pytest.approx(2 / 7)
    assert one.pruning.order == "balanced-bnscalor"
    assert bool(one.kept.all())
    assert fastest.pruning is None


def test_after_a_pruning_the_worker_gets_the_sub_model_it_sent(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20)).until(4)
    task = run.open[0]
    assert torch.equal(task.kept, run.strategy.sub_models()[0])
    assert task.kept.sum() < 80
    assert task.state["0.weight"].shape[0] == int(task.kept[:40].sum())
    assert run.closed[-1].similarity is not None
    assert run.closed[0].similarity is None


def test_update_times_are_averaged_over_the_interval(engine: Engines) -> None:
    jitter = {1: -6.0, 2: 6.0}
    run = engine(lambda w, kept, round: (70 if w == 0 else 30) + jitter.get(round, 0)).until(4)
    assert run.rates()[3] == pytest.approx([2 / 7, 0, 0])


def test_the_round_of_a_pruning_is_left_out_of_the_averages(engine: Engines, line: Lines) -> None:
    straight = line(60, 40, 20)
    calm = engine(straight).until(13)
    wild = engine(lambda w, kept, n: straight(w, kept, n) * (50 if n in (3, 6) and w < 2 else 1))
    assert all(calm.rates()[n][w] > 0 for n in (3, 6) for w in (0, 1))
    assert wild.until(13).rates() == calm.rates()


def test_the_smallest_retention_holds_to_the_last_parameter(engine: Engines, line: Lines) -> None:
    run = engine(line(400, 300, 5), min_retention=0.4, target_time="fastest").until(40)
    assert all(0.4 <= kept < 0.43 for kept in run.retentions()[:2])


def test_nobody_is_pruned_to_be_faster_than_the_slowest_can_become(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(400, 300, 5), min_retention=0.4).until(40)
    # Time is in proportion to the size: the slowest comes to 160 s, and so does the other.
    assert run.retentions() == pytest.approx([0.4, 160 / 300, 1], abs=0.03)


def test_with_an_interval_of_one_nobody_is_pruned_on_the_times_of_its_former_size(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), pruning_interval=1).until(20)
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.03)
    assert run.retentions()[1] == pytest.approx(20 / 40, abs=0.03)


def test_a_worker_that_was_away_since_its_pruning_is_not_pruned_again_by_old_times(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20)).until(4)
    pruned = run.retentions()[0]
    run.open.pop(0)
    run.strategy.lost(0)
    run.until(6)
    run.take(run.strategy.joined(0))
    task = run.open[0]
    assert task.pruning is None
    assert run.retentions()[0] == pruned


def test_a_worker_that_has_left_does_not_set_the_pace(engine: Engines, line: Lines) -> None:
    # It leaves in the interval in which it was measured, so there are times of it to decide by.
    run = engine(line(60, 40, 1), least_speed_up=1.0).until(2)
    run.lose(2)
    run.until(40)
    assert run.retentions()[0] == pytest.approx(40 / 60, abs=0.03)
    assert run.retentions()[1:] == [1, 1]


def test_nor_does_one_that_hangs(engine: Engines, line: Lines) -> None:
    run = engine(line(60, 40, 1), deadline=1.5, least_speed_up=1.0).until(2)
    for _ in range(38):
        this = run.strategy.round
        run.answer(0)
        run.answer(1)
        if run.strategy.round == this:
            run.expire()
    assert run.open[2].round == 2
    assert run.retentions()[0] == pytest.approx(40 / 60, abs=0.03)
    assert run.retentions()[1] == 1


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_worker_that_comes_back_is_measured_anew(
    engine: Engines, line: Lines, has_answered: bool
) -> None:
    # Its link is as fast as the others' until it leaves, and much slower when it is back.
    quick, slow = line(20, 20, 20), line(90, 20, 20)
    run = engine(quick, pruning_interval=6).until(3)
    if has_answered:
        run.answer(0)
    run.lose(0)
    run.times = slow
    run.join(0)
    run.until(6)
    pruning = run.open[0].pruning
    assert pruning is not None
    # (100 − 30) / (2 · 100); with a time of before it would be less.
    assert pruning.rate == pytest.approx(0.35)


def test_a_worker_that_is_late_does_not_set_the_pace_by_what_it_took_before(
    engine: Engines, line: Lines
) -> None:
    run = engine(line(60, 40, 20), deadline=1.5).until(3)
    for _ in range(3):
        this = run.strategy.round
        run.answer(0)
        run.answer(1)
        if run.strategy.round == this:
            run.expire()
    assert run.strategy.round == 6
    assert run.open[2].round == 3
    # Pruned once, worker 1 takes 42 s: more than the 30 of worker 2, less than its own 50.
    assert run.open[1].pruning is None
    assert run.open[0].pruning is not None


def test_the_target_is_as_uncertain_as_the_measurement_it_comes_from(engine: Engines) -> None:
    # Worker 0 sets the pace: 10 s on average, but now 8 and now 12. Worker 1 is pruned until it
    # is a little faster, and takes always the same. Worker 2 is not surely slower than the pace.
    def times(worker: int, kept: float, round: int) -> float:
        return (8.0 if round % 2 else 12.0, 20 * kept, 11.5)[worker]

    run = engine(times, pruning_interval=5).until(40)
    assert 20 * run.retentions()[1] < 10
    assert run.retentions()[0] == run.retentions()[2] == 1


def test_a_table_of_pruned_rates_is_carried_out_row_by_row(engine: Engines, line: Lines) -> None:
    run = engine(line(1, 1, 1), pruned_rates=TABLE).until(20)
    assert run.rates() == {3: [0.5, 0.3, 0.0], 6: [0.2, 0.0, 0.1]}
    assert run.retentions() == pytest.approx([0.4, 0.7, 0.9], abs=0.03)


def test_a_table_goes_as_far_as_it_says_whatever_the_smallest_retention_is(
    engine: Engines, line: Lines
) -> None:
    table = ((0.8, 0.0, 0.0),)
    run = engine(line(1, 1, 1), pruned_rates=table, min_retention=0.4).until(6)
    assert run.retentions()[0] == pytest.approx(0.2, abs=0.03)


def test_a_table_for_another_number_of_workers_is_refused(engine: Engines, line: Lines) -> None:
    with pytest.raises(SettingError, match="a row of 3 rates"):
        engine(line(1, 1, 1, 1), workers=4, pruned_rates=TABLE)


@pytest.mark.slow
def test_it_learns_and_makes_workers_equal(learn: Callable[..., FinishedRun]) -> None:
    result = learn(
        "adaptcl", rounds=15, pruning_interval=3, strength=0.3, train_time=0.006, min_retention=0.1
    )
    summary = result.summary
    assert summary.accuracy > 0.85
    assert summary.heterogeneity_first > 0.35
    assert summary.heterogeneity_last < 0.05
    assert list(summary.retention) == sorted(summary.retention)
    assert summary.retention[-1] == 1
