from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adaptcl.strategies import Job
from adaptcl.strategies.fluid import FLuID, FLuIDSettings, most_changed, relative_changes
from adaptcl.training import Arrival, Task
from adaptcl.units import State

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def changes_filters(*rows: int) -> Callable[[Task], State]:
    """Training that doubles these filters of the first layer and leaves everything else."""

    def train(task: Task) -> State:
        state = {name: tensor.clone() for name, tensor in task.state.items()}
        if bool(task.kept.all()):
            state["0.weight"][list(rows)] *= 2
        return state

    return train


def test_a_units_change_is_the_largest_relative_change_of_its_weights(
    with_batch_norm: Jobs, answered: Answers
) -> None:
    strategy = FLuID(with_batch_norm(1, 1), FLuIDSettings())
    (task,) = strategy.start().tasks
    state = {name: tensor.clone() for name, tensor in task.state.items()}
    state["0.weight"][1, 2] *= 1.5  # the filter of unit 1
    state["3.weight"][5, 3] *= 3.0  # of unit 4 + 5, which reads unit 3
    state["1.bias"] += 9.0  # batch norm does not count
    found = relative_changes(strategy.units, task, answered(task, state))
    expected = [0.0] * 12
    expected[1], expected[3], expected[9] = 0.5, 2.0, 2.0
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_sub_model_leaves_out_the_units_that_changed_least(with_batch_norm: Jobs) -> None:
    units = with_batch_norm(1, 1).units
    change = torch.tensor([0.1, 0.4, 0.2, 0.3, *[1.0] * 8])
    assert most_changed(units, change, 0.5)[:4].tolist() == [False, True, False, True]
    assert bool(most_changed(units, change, 1.0).all())


def test_the_slowest_get_sub_models_as_fast_as_the_slowest_of_the_others(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    strategy = FLuID(with_batch_norm(5, 3), FLuIDSettings(straggler_share=0.4))
    line = timeline(strategy, times=[8, 4, 2, 1, 1], train=changes_filters(1, 3)).start()
    line.run(rounds=1)
    kept = [task.kept for _, task in sorted(line.open.values(), key=lambda each: each[1].worker)]
    assert [bool(each.all()) for each in kept] == [False, False, True, True, True]
    assert int(kept[0].sum()) < int(kept[1].sum())
    # Units 0 and 2 of the first layer did not change anywhere, so they go first.
    assert kept[1][:4].tolist() == [False, True, False, True]


def test_a_unit_is_invariant_if_three_quarters_of_the_fast_agree(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    def train(task: Task) -> State:
        # Worker 4 alone changes units 0 and 2; units 1 and 3 change everywhere.
        return changes_filters(*([0, 1, 2, 3] if task.worker == 4 else [1, 3]))(task)

    strategy = FLuID(with_batch_norm(5, 2), FLuIDSettings())
    line = timeline(strategy, times=[2, 1, 1, 1, 1], train=train).start().run(rounds=1)
    assert line.open[0][1].kept[:4].tolist() == [False, True, False, True]
