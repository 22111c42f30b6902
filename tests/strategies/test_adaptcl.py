from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl import snapshot
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.errors import SettingError
from adaptcl.pruning import ServerView, importance_lost, prune
from adaptcl.pruning.no_constant import NoConstant
from adaptcl.run import Result
from adaptcl.strategies import Closed, Job, Reaction
from adaptcl.strategies.adaptcl import AdaptCL, AdaptCLSettings
from adaptcl.training import Arrival, Cut, Recipe, Task, Timing, Update
from adaptcl.units import State, UnitMap, recut, retention, trace

SETTINGS = AdaptCLSettings(pruning_interval=3)
Times = Callable[[int, float, int], float]
"""(worker, retention, round) → update time."""
Changed = Callable[[Task], State]
SCALES = ("1.weight", "4.weight")
"""The BN scales of the model's two layers."""


@cache
def model() -> tuple[UnitMap, State]:
    """Two layers of forty units; one unit is about one percent of the parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(),
        nn.Linear(40, 40), nn.BatchNorm1d(40), nn.ReLU(),
        nn.Linear(40, 4),
    )  # fmt: skip
    with torch.no_grad():
        for name in SCALES:
            net.get_parameter(name).uniform_(0.1, 1)
    return trace(net, torch.zeros(2, 20)), {n: t.clone() for n, t in net.state_dict().items()}


def job(workers: int, rounds: int = 99, state: State | None = None) -> Job:
    units, first = model()
    return Job(units, state or first, workers, rounds, Recipe(), seed=5)


def line(*slopes: float, fixed: float = 10.0) -> Times:
    """Update times of a fixed part and a part in proportion to retention."""
    return lambda worker, kept, _: fixed + slopes[worker] * kept


def unchanged(task: Task) -> State:
    return dict(task.state)


class Engine:
    """Answers every task as a worker would, without training, and keeps what it has seen."""

    def __init__(
        self,
        strategy: AdaptCL,
        times: Times,
        *,
        changed: Changed = unchanged,
        harm: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.strategy = strategy
        self.times = times
        self.changed = changed
        self.harm = harm
        """Importance lost and rise of the loss in every pruning."""
        self.open: dict[int, Task] = {}
        self.tasks: list[Task] = []
        self.closed: list[Closed] = []

    def start(self) -> Engine:
        self.take(self.strategy.start())
        return self

    def until(self, round: int) -> Engine:
        """Go on until that round has begun."""
        while self.strategy.round < round and not self.strategy.finished:
            self.answer(min(self.open))
        return self

    def answer(self, worker: int) -> Reaction:
        return self.take(self.strategy.receive(self.arrival(self.open.pop(worker))))

    def arrival(self, task: Task) -> Arrival:
        kept, cut, units = task.kept, None, self.strategy.units
        if task.pruning:
            importance = task.pruning.importance
            importance = torch.rand(units.count) if importance is None else importance
            kept = prune(
                units,
                task.kept,
                importance,
                task.pruning.rate,
                task.pruning.min_retention,
                task.pruning.width_multiple,
            )
            lost, jump = self.harm
            cut = Cut(lost, 1.0, 1.0 + jump)
        state = recut(self.changed(task), units, task.kept, kept)
        seconds = self.times(task.worker, retention(units, task.kept), task.round)
        update = Update(task.worker, task.round, state, kept, 10, 1.0, cut)
        return Arrival(update, Timing(0.0, seconds, 0.0))

    def take(self, reaction: Reaction) -> Reaction:
        self.tasks.extend(reaction.tasks)
        self.open.update({task.worker: task for task in reaction.tasks})
        if reaction.closed:
            self.closed.append(reaction.closed)
        return reaction

    def rates(self) -> dict[int, list[float]]:
        """By round, the pruned rates carried out in it (negative: grown), where any were."""
        found = {c.round: [w.pruned_rate for w in c.workers] for c in self.closed}
        return {round: rates for round, rates in found.items() if any(rates)}

    def retentions(self) -> list[float]:
        return [retention(self.strategy.units, kept) for kept in self.strategy.kept]

    def spread(self) -> list[float]:
        return [heterogeneity([w.update_time_s for w in c.workers]) for c in self.closed]


def engine(
    times: Times, settings: AdaptCLSettings = SETTINGS, workers: int = 3, **more: Any
) -> Engine:
    return Engine(AdaptCL(job(workers), settings), times, **more).start()


# When and how much ------------------------------------------------------------------------------


def test_whoever_is_slower_prunes_in_every_interval_th_round_until_all_are_equal() -> None:
    run = engine(line(60, 40, 20)).until(25)
    assert set(run.rates()) <= {3, 6, 9, 12, 15, 18, 21, 24}
    # (70 − 30) / (2·70) and (50 − 30) / (2·50).
    assert run.rates()[3] == pytest.approx([2 / 7, 0.2, 0])
    assert run.spread()[0] > 0.4
    assert run.spread()[-1] < 0.03
    assert run.retentions()[2] == 1
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.03)
    assert run.retentions()[1] == pytest.approx(20 / 40, abs=0.03)


def test_the_pruning_is_part_of_the_task_of_the_round() -> None:
    run = engine(line(60, 40, 20)).until(3)
    one, _, fastest = run.tasks[-3:]
    assert [task.round for task in run.tasks[-3:]] == [3, 3, 3]
    assert one.pruning is not None
    assert one.pruning.rate == pytest.approx(2 / 7)
    assert one.pruning.order == "cig-bnscalor"
    assert bool(one.kept.all())
    assert fastest.pruning is None


def test_after_a_pruning_the_worker_gets_the_sub_model_it_sent() -> None:
    run = engine(line(60, 40, 20)).until(4)
    task = run.open[0]
    assert torch.equal(task.kept, run.strategy.sub_models()[0])
    assert task.kept.sum() < 80
    assert task.state["0.weight"].shape[0] == int(task.kept[:40].sum())
    assert run.closed[-1].similarity is not None
    assert run.closed[0].similarity is None


def test_update_times_are_averaged_over_the_interval() -> None:
    jitter = {1: -6.0, 2: 6.0}
    run = engine(lambda w, kept, round: (70 if w == 0 else 30) + jitter.get(round, 0)).until(4)
    assert run.rates()[3] == pytest.approx([2 / 7, 0, 0])


def test_the_round_of_a_pruning_is_left_out_of_the_averages() -> None:
    straight = line(60, 40, 20)
    calm = engine(straight).until(13)
    wild = engine(lambda w, kept, n: straight(w, kept, n) * (50 if n in (3, 6) and w < 2 else 1))
    assert all(calm.rates()[n][w] > 0 for n in (3, 6) for w in (0, 1))
    assert wild.until(13).rates() == calm.rates()


def test_no_sub_model_is_pruned_much_below_the_smallest_retention() -> None:
    run = engine(line(400, 300, 5), replace(SETTINGS, min_retention=0.4)).until(40)
    # Whole units go, so the last one may go below by its own size.
    assert all(kept > 0.4 - 0.02 for kept in run.retentions()[:2])
    assert all(kept < 0.43 for kept in run.retentions()[:2])


def test_the_smallest_retention_holds_to_the_last_parameter() -> None:
    run = engine(line(400, 300, 5), replace(SETTINGS, min_retention=0.4)).until(40)
    assert min(run.retentions()) >= 0.4


def test_with_an_interval_of_one_nobody_is_pruned_on_the_times_of_its_former_size() -> None:
    run = engine(line(60, 40, 20), replace(SETTINGS, pruning_interval=1)).until(20)
    assert run.retentions()[0] == pytest.approx(20 / 60, abs=0.03)
    assert run.retentions()[1] == pytest.approx(20 / 40, abs=0.03)


def test_a_worker_that_was_away_since_its_pruning_is_not_pruned_again_by_old_times() -> None:
    run = engine(line(60, 40, 20)).until(4)
    pruned = run.retentions()[0]
    run.open.pop(0)
    run.strategy.lost(0)
    run.until(6)
    run.take(run.strategy.joined(0))
    task = run.open[0]
    assert task.pruning is None
    assert run.retentions()[0] == pruned


def test_a_worker_that_has_left_does_not_set_the_pace() -> None:
    run = engine(line(60, 40, 1)).until(2)
    run.open.pop(2)
    run.strategy.lost(2)
    run.until(40)
    # It was there at the first decision; since then the second worker is the fastest.
    assert run.retentions()[1] > 0.5


def test_prunings_of_a_worker_that_is_away_wait_for_it() -> None:
    run = engine(line(60, 40, 20)).until(2)
    run.answer(0)
    run.strategy.lost(0)
    run.until(4)
    assert run.rates()[3] == pytest.approx([0.2, 0])
    run.take(run.strategy.joined(0))
    pruning = run.open[0].pruning
    assert pruning is not None
    assert pruning.rate == pytest.approx(2 / 7)


# A fixed table ----------------------------------------------------------------------------------

TABLE = ((0.5, 0.3, 0.0), (0.2, 0.0, 0.1))


def test_a_table_of_pruned_rates_is_carried_out_row_by_row() -> None:
    run = engine(line(1, 1, 1), replace(SETTINGS, pruned_rates=TABLE)).until(20)
    assert run.rates() == {3: [0.5, 0.3, 0.0], 6: [0.2, 0.0, 0.1]}
    assert run.retentions() == pytest.approx([0.4, 0.7, 0.9], abs=0.03)


def test_a_table_for_another_number_of_workers_is_refused() -> None:
    with pytest.raises(SettingError, match="a row of 3 rates"):
        AdaptCL(job(4), replace(SETTINGS, pruned_rates=TABLE))


# The order --------------------------------------------------------------------------------------


def shuffled_scales(task: Task) -> State:
    """Training that turns the importance of units upside down every round."""
    return {
        name: tensor.flip(0) if name in SCALES else tensor for name, tensor in task.state.items()
    }


def orders(run: Engine) -> list[Tensor]:
    return [
        task.pruning.importance
        for task in run.tasks
        if task.pruning and task.pruning.importance is not None
    ]


def test_cig_bnscalor_is_the_scales_at_the_first_pruning_for_ever() -> None:
    run = engine(line(60, 40, 20), changed=shuffled_scales).until(3)
    scales = torch.cat([run.strategy.state["1.weight"], run.strategy.state["4.weight"]]).abs()
    run.until(13)
    found = orders(run)
    assert len(found) >= 4
    for importance in found:
        torch.testing.assert_close(importance, scales)


def test_the_smaller_sub_model_is_always_inside_the_larger() -> None:
    times = line(90, 70, 50, 30, 20)
    run = engine(times, workers=5, changed=shuffled_scales)
    for round in range(1, 20):
        run.until(round)
        by_size = sorted(run.strategy.sub_models(), key=lambda kept: int(kept.sum()))
        for small, large in pairwise(by_size):
            assert not (small & ~large).any()
    assert len({int(kept.sum()) for kept in run.strategy.sub_models()}) >= 4


def test_orders_that_workers_compute_come_without_importance() -> None:
    run = engine(line(60, 40, 20), replace(SETTINGS, pruning="taylor")).until(4)
    pruned = [task.pruning for task in run.tasks if task.pruning]
    assert len(pruned) == 2
    assert all(p.order == "taylor" and p.importance is None for p in pruned)


def test_orders_that_are_not_frozen_are_computed_anew() -> None:
    table = ((0.1, 0.1), (0.1, 0.1))
    settings = replace(SETTINGS, pruning="no-constant", pruned_rates=table)
    first, second = orders(engine(line(1, 1), settings, workers=2).until(7))[::2]
    assert not torch.equal(first, second)


def test_an_order_is_told_how_many_prunings_there_were_before() -> None:
    settings = replace(SETTINGS, pruning="no-constant", pruned_rates=((0.1, 0.1),))
    run = engine(line(1, 1), settings, workers=2).until(4)
    units, state = model()
    expected = NoConstant().importance(ServerView(units, state, worker=0, pruning=0, seed=5))
    assert torch.equal(orders(run)[0], expected)


# Harm -------------------------------------------------------------------------------------------


def test_a_harmful_pruning_is_told_in_one_sentence() -> None:
    run = engine(line(60, 40, 20), harm=(0.35, 1.4)).until(4)
    assert [c.warnings for c in run.closed[:2]] == [(), ()]
    (warning,) = run.closed[2].warnings
    assert "2 of 3 workers" in warning
    assert "35%" in warning
    assert "1.40" in warning
    assert "strength" in warning
    assert [w.importance_lost for w in run.closed[2].workers] == [0.35, 0.35, None]


@pytest.mark.parametrize("harm", [(0.1, 1.4), (0.35, 0.2), (0.1, 0.2)])
def test_a_pruning_that_cuts_little_or_changes_little_is_not_worth_a_word(
    harm: tuple[float, float],
) -> None:
    run = engine(line(60, 40, 20), harm=harm).until(13)
    assert all(closed.warnings == () for closed in run.closed)
    assert run.closed[2].workers[0].loss_jump == pytest.approx(harm[1])


def test_how_much_importance_may_go_is_a_setting() -> None:
    settings = replace(SETTINGS, max_importance_lost=0.5)
    run = engine(line(60, 40, 20), settings, harm=(0.35, 1.4)).until(4)
    assert run.closed[2].warnings == ()


def shrinking(task: Task) -> State:
    """What the group lasso does: the scales of half the units fade, the faster the stronger."""
    factor = torch.ones(40)
    factor[20:] = 0.9**task.lasso_scale
    return {
        name: tensor * factor if name in SCALES and bool(task.kept.all()) else tensor
        for name, tensor in task.state.items()
    }


def test_a_chosen_strength_waits_and_raises_the_lasso_until_pruning_is_harmless() -> None:
    equal = {name: torch.ones(40) for name in SCALES}
    settings = replace(SETTINGS, adapt_strength=True, max_importance_lost=0.1, pruning_interval=6)
    plain = replace(settings, adapt_strength=False)
    losses = {}
    for each in (settings, plain):
        strategy = AdaptCL(job(3, state={**model()[1], **equal}), each)
        run = Engine(strategy, line(60, 20, 20), changed=shrinking).start()
        while not run.rates():
            run.until(strategy.round + 1)
        pruning = next(task for task in run.tasks if task.pruning)
        assert pruning.pruning is not None
        assert pruning.pruning.importance is not None
        losses[each] = importance_lost(
            pruning.kept, run.strategy.kept[0], pruning.pruning.importance
        )
        scales = [task.lasso_scale for task in run.tasks if task.worker == 0]
        if each is settings:
            waited = pruning.round - 6
            assert 1 <= waited < 6
            assert scales[:6] == [1, 1, 1, 1, 1, 1.5]
            assert scales[: 6 + waited][-1] == pytest.approx(1.5**waited)
        else:
            assert pruning.round == 6
            assert set(scales) == {1.0}
    assert losses[settings] <= 0.1 < losses[plain]


def test_a_chosen_strength_does_not_wait_longer_than_an_interval() -> None:
    settings = replace(SETTINGS, adapt_strength=True, max_importance_lost=0.0)
    run = engine(line(60, 40, 20), settings).until(8)
    scales = [task.lasso_scale for task in run.tasks if task.worker == 0]
    assert scales[:6] == pytest.approx([1, 1, 1.5, 1.5**2, 1.5**3, 1.5**3])
    assert list(run.rates()) == [6]


def test_a_harmless_pruning_does_not_wait() -> None:
    settings = replace(SETTINGS, adapt_strength=True, max_importance_lost=1.0)
    run = engine(line(60, 40, 20), settings).until(8)
    assert {task.lasso_scale for task in run.tasks} == {1.0}
    assert min(run.rates()) == 3


def test_a_table_waits_without_losing_a_row() -> None:
    settings = replace(SETTINGS, adapt_strength=True, max_importance_lost=0.0, pruned_rates=TABLE)
    run = engine(line(1, 1, 1), settings).until(30)
    assert list(run.rates().values()) == [[0.5, 0.3, 0.0], [0.2, 0.0, 0.1]]


# Change -----------------------------------------------------------------------------------------


def changing(before: Sequence[float], after: Sequence[float], at: int) -> Times:
    """Slopes that change in one round."""
    return lambda worker, kept, round: 10 + (before if round < at else after)[worker] * kept


def test_a_worker_that_becomes_slower_prunes_until_all_are_equal_again() -> None:
    run = engine(changing((40, 40, 40), (120, 40, 40), at=13)).until(37)
    assert min(run.rates()) >= 15
    assert run.spread()[12] > 0.25
    assert run.spread()[-1] < 0.05
    assert run.retentions()[0] == pytest.approx(1 / 3, abs=0.04)
    assert run.retentions()[1:] == [1, 1]


def test_what_was_learned_before_a_change_is_forgotten() -> None:
    run = engine(changing((60, 40, 20), (80, 40, 20), at=21)).until(20)
    before = run.retentions()
    run.until(26)
    now = 10 + 80 * before[0]
    # One point is left, so the cautious first rule decides.
    assert run.rates()[24][0] == pytest.approx((now - 30) / (2 * now))
    run.until(50)
    assert run.retentions() == pytest.approx([0.25, *before[1:]], abs=0.03)


GROWING = replace(SETTINGS, grow=True)


def test_a_worker_that_recovers_grows_back_to_the_whole_model() -> None:
    run = engine(changing((90, 30, 30), (30, 30, 30), at=19), GROWING).until(18)
    small = run.strategy.sub_models()[0].clone()
    assert run.spread()[-1] < 0.05
    assert run.retentions()[0] < 0.4
    run.until(46)
    assert run.retentions()[0] == 1
    assert run.spread()[-1] < 0.05
    assert run.retentions()[1:] == [1, 1]
    grown = [round for round, rates in run.rates().items() if rates[0] < 0]
    assert grown
    assert min(grown) >= 19
    assert not (small & ~run.strategy.sub_models()[0]).any()


def test_growing_never_cuts_and_brings_back_the_values_of_the_global_model() -> None:
    # An order that changes would like to exchange units for others.
    settings = replace(GROWING, pruning="no-constant")
    run = engine(changing((90, 30, 30), (60, 30, 30), at=19), settings).until(18)
    for round in range(19, 40):
        before = run.strategy.sub_models()[0].clone()
        run.until(round)
        task = run.open[0]
        if (
            not torch.equal(task.kept, before)
            and task.pruning is None
            and bool((task.kept & ~before).any())
        ):
            assert not (before & ~task.kept).any()
            rows = task.kept[:40]
            assert torch.equal(task.state["0.weight"], run.strategy.state["0.weight"][rows])
            break
    else:
        pytest.fail("nothing grew")


def test_without_the_setting_nothing_grows() -> None:
    run = engine(changing((90, 30, 30), (30, 30, 30), at=19)).until(46)
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


def test_down_and_up_again_without_oscillation() -> None:
    slopes: Mapping[int, Sequence[float]] = {0: (30, 30, 30), 1: (90, 30, 30), 2: (30, 30, 30)}

    def times(worker: int, kept: float, round: int) -> float:
        return 10 + slopes[min(2, round // 21)][worker] * kept

    run = engine(times, GROWING).until(63)
    spread = run.spread()
    # Four pruning intervals after each change.
    assert max(spread[21 + 12 : 41]) < 0.05
    assert max(spread[42 + 12 :]) < 0.05
    changes = [rates[0] for rates in run.rates().values()]
    turns = sum(1 for a, b in pairwise(changes) if a * b < 0)
    assert turns == 1


# Checkpoints ------------------------------------------------------------------------------------


def resumed(run: Engine, folder: Path) -> Engine:
    snapshot.save(folder / "checkpoint", run.strategy.snapshot())
    strategy = AdaptCL(run.strategy.job, run.strategy.adaptcl)
    strategy.restore(snapshot.load(folder / "checkpoint"))
    other = Engine(strategy, run.times, changed=run.changed, harm=run.harm)
    other.closed = list(run.closed)
    other.open = {task.worker: task for task in strategy.outstanding()}
    return other


@pytest.mark.parametrize("stop", [2, 3, 4, 6, 8, 13])
@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        GROWING,
        replace(SETTINGS, adapt_strength=True, max_importance_lost=0.05),
        replace(SETTINGS, pruned_rates=TABLE),
        replace(SETTINGS, pruning="no-constant", aggregation="by-unit"),
    ],
)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    tmp_path: Path, settings: AdaptCLSettings, stop: int
) -> None:
    times = changing((60, 40, 20), (30, 90, 20), at=11)
    whole = engine(times, settings, changed=shuffled_scales).until(25)
    broken = engine(times, settings, changed=shuffled_scales).until(stop)
    after = resumed(broken, tmp_path).until(25)
    assert after.closed == whole.closed
    assert after.closed

    def scales(run: Engine) -> dict[tuple[int, int], float]:
        return {(t.round, t.worker): t.lasso_scale for t in run.tasks if t.round > stop}

    assert scales(after) == scales(whole)
    assert after.retentions() == whole.retentions()
    one, other = whole.strategy.model(), after.strategy.model()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_remembers_prunings_that_wait_for_a_worker(tmp_path: Path) -> None:
    run = engine(line(60, 40, 20)).until(2)
    run.answer(0)
    run.strategy.lost(0)
    after = resumed(run.until(4), tmp_path)
    one, other = (each.take(each.strategy.joined(0)).tasks[0] for each in (run, after))
    assert one.pruning is not None
    assert other.pruning is not None
    assert one.pruning.rate == other.pruning.rate > 0


def test_a_snapshot_does_not_change_when_the_run_goes_on(tmp_path: Path) -> None:
    run = engine(line(60, 40, 20)).until(5)
    tree = run.strategy.snapshot()
    snapshot.save(tmp_path / "before", tree)
    run.until(6)
    snapshot.save(tmp_path / "after", tree)
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_late_prunings_are_carried_out_once() -> None:
    # Worker 0 is told to prune in round 3 and answers only after the decision for round 6.
    settings = replace(SETTINGS, deadline=1.5)
    run = engine(line(60, 40, 20), settings).until(3)
    told = run.open[0].pruning
    assert told is not None
    late = run.open.pop(0)
    for _ in range(3):
        for worker in (1, 2):
            run.answer(worker)
        if run.strategy.round == late.round:
            run.take(run.strategy.expired())
    assert run.strategy.round >= 6
    run.take(run.strategy.receive(run.arrival(late)))
    run.until(run.strategy.round + 1)
    task = run.open[0]
    assert retention(run.strategy.units, task.kept) == pytest.approx(5 / 7, abs=0.02)
    assert task.pruning is None


def test_it_learns_and_makes_workers_equal(learn: Callable[..., Result]) -> None:
    result = learn("adaptcl", rounds=15, pruning_interval=3, strength=0.3, train_time=0.006)
    summary = result.summary
    assert summary.accuracy > 0.85
    assert summary.heterogeneity_first > 0.35
    assert summary.heterogeneity_last < 0.05
    assert list(summary.retention) == sorted(summary.retention)
    assert summary.retention[-1] == 1


# Widths -----------------------------------------------------------------------------------------


@cache
def wide_model() -> tuple[UnitMap, State]:
    """Two layers of two hundred units; four units are just below two percent of the parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 200), nn.BatchNorm1d(200), nn.ReLU(),
        nn.Linear(200, 200), nn.BatchNorm1d(200), nn.ReLU(),
        nn.Linear(200, 4),
    )  # fmt: skip
    with torch.no_grad():
        for name in SCALES:
            net.get_parameter(name).uniform_(0.1, 1)
    return trace(net, torch.zeros(2, 20)), {n: t.clone() for n, t in net.state_dict().items()}


def wide_engine(times: Times, settings: AdaptCLSettings) -> Engine:
    return Engine(AdaptCL(Job(*wide_model(), 3, 99, Recipe(), seed=5), settings), times).start()


def widths(run: Engine) -> list[list[int]]:
    """How many units of each layer each worker has."""
    layers = run.strategy.units.layers
    return [
        [int(kept[list(layer.units)].sum()) for layer in layers]
        for kept in run.strategy.sub_models()
    ]


@pytest.mark.parametrize("order", ["cig-bnscalor", "no-constant", "taylor"])
@pytest.mark.parametrize("multiple", [1, 2, 16])
def test_pruned_widths_are_multiples_and_all_workers_still_become_equally_fast(
    multiple: int, order: str
) -> None:
    settings = replace(SETTINGS, width_multiple=multiple, pruning=order)
    run = wide_engine(line(90, 60, 30), settings)
    for round in range(2, 30):
        run.until(round)
        assert all(width % min(multiple, 4) == 0 for row in widths(run) for width in row)
    assert min(widths(run)[0]) < 200
    assert run.spread()[-1] < 0.03
    settled = widths(run)
    assert widths(run.until(60)) == settled


def test_grown_widths_are_multiples_too() -> None:
    times = changing((90, 30, 30), (45, 30, 30), at=19)
    run = wide_engine(times, replace(GROWING, width_multiple=16)).until(18)
    small = sum(widths(run)[0])
    for round in range(19, 60):
        run.until(round)
        assert all(width % 4 == 0 for width in widths(run)[0])
    assert small < sum(widths(run)[0]) < 400
    assert run.spread()[-1] < 0.03


def test_less_than_a_block_to_grow_by_is_not_put_on_record_as_growing() -> None:
    # Every growth that is wanted is one percent, and a block is almost two.
    settings = replace(GROWING, width_multiple=16, min_pruned_rate=0.001)
    run = wide_engine(line(33, 30, 30), settings).until(60)
    assert run.retentions()[0] < 1
    assert all(rate >= 0 for rates in run.rates().values() for rate in rates)


def test_the_multiple_goes_with_every_pruning() -> None:
    tasks = engine(line(60, 40, 20), replace(SETTINGS, width_multiple=8)).until(10).tasks
    assert {task.pruning.width_multiple for task in tasks if task.pruning} == {8}


def test_waiting_for_the_lasso_looks_at_the_pruning_that_would_be_carried_out() -> None:
    # The order comes to large scales within a block, so a whole block costs more than its part.
    units, first = wide_model()
    scales = torch.full((200,), 0.01)
    scales[100:] = 1.0
    state = {**first, "1.weight": scales, "4.weight": scales.clone()}
    lost = importance_lost(
        units.everything(),
        prune(units, units.everything(), torch.cat([scales, scales]), 0.3, width_multiple=16),
        torch.cat([scales, scales]),
    )
    for limit, waits in ((lost - 1e-6, True), (lost + 1e-6, False)):
        settings = replace(
            SETTINGS,
            adapt_strength=True,
            max_importance_lost=limit,
            pruned_rates=((0.3,) * 3,),
            width_multiple=16,
        )
        strategy = AdaptCL(Job(units, state, 3, 99, Recipe(), seed=5), settings)
        run = Engine(strategy, line(30, 30, 30)).start().until(3)
        assert (run.open[0].pruning is None) == waits
