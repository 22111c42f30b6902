"""Workers that cannot get smaller: they are not asked for ever, and the user is told why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from adaptcl.pruning.budget import smallest_retention
from adaptcl.units import State, UnitMap, trace

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Lines

    Starts = Callable[..., Engine]


def of_units(count: int) -> tuple[UnitMap, State]:
    """One layer of so many units, each about an equal part of the model."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(20, count), nn.ReLU(), nn.Linear(count, 2))
    return trace(net, torch.randn(2, 20)), net.state_dict()


def coarse() -> tuple[UnitMap, State]:
    return of_units(3)


def mostly_fixed() -> tuple[UnitMap, State]:
    """Most parameters are the output layer's, which reads what cannot be cut."""
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(20, 40)
            self.mix = nn.Softmax(-1)
            self.narrow = nn.Linear(40, 10)
            self.out = nn.Linear(10, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.mix(self.wide(x)))
            out: torch.Tensor = self.out(torch.relu(self.narrow(h)))
            return out

    net = Net()
    return trace(net, torch.randn(2, 20)), net.state_dict()


@pytest.fixture
def start(engine: Engines, line: Lines) -> Starts:
    """Two workers that would have to become very small, and one that is fast."""

    def begin(other: tuple[UnitMap, State], **settings: Any) -> Engine:
        usual = {"pruning_interval": 2, "width_multiple": 1, "least_speed_up": 1.0}
        return engine(line(400, 400, 5), other=other, **{**usual, **settings})

    return begin


@pytest.mark.parametrize("order", ["balanced-bnscalor", "taylor"])
def test_a_pruning_that_would_cut_nothing_is_not_asked_for_again_and_again(
    start: Starts, order: str
) -> None:
    run = start(coarse(), min_retention=0.5, pruning=order).until(40)
    assert all(0.5 <= kept < 0.7 for kept in run.retentions()[:2])
    asked = [task.round for task in run.tasks if task.pruning and task.worker == 0]
    # Where workers order the units, it takes one pruning in vain to know.
    assert len(asked) == (2 if order == "taylor" else 1)
    assert len(run.rates()) == 1


@pytest.mark.parametrize("order", ["balanced-bnscalor", "l1"])
def test_nobody_is_pruned_to_a_time_that_a_stuck_worker_cannot_reach(
    engine: Engines, line: Lines, order: str
) -> None:
    # Of eight units, three are the fewest that leave 0.3 of the model.
    run = engine(
        line(400, 200, 5), other=of_units(8), pruning_interval=2, min_retention=0.3,
        max_pruned_rate=0.3, pruning=order, grow=True,
    ).until(40)  # fmt: skip
    slowest, middle, fastest = run.retentions()
    assert slowest == pytest.approx(0.385, abs=0.01)
    assert fastest == 1
    # It is as fast as the slowest: with a unit less it would only wait.
    assert middle == pytest.approx(0.754, abs=0.01)


def test_the_pruned_rate_on_record_is_what_was_carried_out(start: Starts) -> None:
    # Asked for half of its sub-model, of which γ_min lets only a third go.
    run = start(coarse(), min_retention=0.5, alpha=1.0).until(20)
    ((rate, *_),) = run.rates().values()
    assert rate == pytest.approx(1 - run.retentions()[0])
    (told,) = (task.pruning for task in run.tasks if task.pruning and task.worker == 0)
    assert told is not None
    assert told.rate > rate


def test_who_could_cut_nothing_is_asked_again_when_it_has_another_size(start: Starts) -> None:
    run = start(coarse(), min_retention=0.5, pruning="taylor").until(20)
    run.lose(0)
    run.strategy.kept[0] = run.strategy.units.everything()
    run.join(0)
    run.until(30)
    assert any(task.pruning for task in run.tasks if task.worker == 0 and task.round > 20)


def test_a_checkpoint_knows_who_could_cut_nothing(start: Starts, tmp_path: Path) -> None:
    run = start(coarse(), min_retention=0.5, pruning="taylor").until(20).resumed(tmp_path)
    assert not any(task.pruning for task in run.until(40).tasks)


def test_what_cannot_be_cut_stops_a_worker_and_is_told_once(start: Starts, tmp_path: Path) -> None:
    run = start(mostly_fixed())
    least = smallest_retention(run.strategy.units)
    assert least > 0.5
    run = run.until(12).resumed(tmp_path).until(40)
    assert run.retentions() == pytest.approx([least, least, 1])
    (told,) = (warning for closed in run.closed for warning in closed.warnings)
    assert f"Only {1 - least:.0%} of this model's parameters can be cut" in told
    assert f"workers 0 and 1 cannot get below {least:.0%}" in told
    assert "adaptcl.describe" in told


def test_who_stops_at_the_smallest_retention_that_was_set_hears_of_nothing_else(
    start: Starts,
) -> None:
    units, _ = mostly_fixed()
    limit = smallest_retention(units) + 0.05
    run = start(mostly_fixed(), min_retention=limit).until(40)
    assert run.retentions()[0] < limit + 0.1
    (warning,) = [text for closed in run.closed for text in closed.warnings]
    assert "the smallest sub-model that `min_retention`" in warning
