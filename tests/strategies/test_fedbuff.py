from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptcl.errors import SettingError
from adaptcl.strategies import Job
from adaptcl.strategies.fedbuff import FedBuff, FedBuffSettings
from adaptcl.training import Arrival

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def weight(value: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor([[value]])}


def plain(buffer_size: int) -> FedBuffSettings:
    """The buffered changes are averaged as they are."""
    return FedBuffSettings(buffer_size, server_learning_rate=1.0)


def test_four_changes_worked_out_by_hand(one_weight: Jobs, answered: Answers) -> None:
    strategy = FedBuff(one_weight(3, 2), plain(2))
    zero, one, two = strategy.start().tasks

    def model() -> float:
        return strategy.model()["weight"].item()

    (again,) = strategy.receive(answered(two, weight(4.0))).tasks
    assert model() == 0, "one change does not fill the buffer"
    assert again.state["weight"].item() == 0, "the worker goes on from the model as it is"

    strategy.receive(answered(one, weight(2.0)))
    assert model() == pytest.approx(3.0)  # (4 + 2) / 2, neither of them stale

    # Both had pulled before the model moved once, so they are weighed by 1/√2.
    strategy.receive(answered(zero, weight(6.0)))
    assert model() == pytest.approx(3.0)
    strategy.receive(answered(again, weight(1.0)))
    assert model() == pytest.approx(3.0 + (6.0 + 1.0) / 2**0.5 / 2)


def test_staleness_counts_moves_of_the_model_not_changes(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = FedBuff(one_weight(4, 1), plain(4))
    for task in strategy.start().tasks:
        strategy.receive(answered(task, weight(8.0)))
    assert strategy.model()["weight"].item() == pytest.approx(8.0), "all four are fresh"


def test_a_single_change_in_between_makes_stale_if_the_model_moved_with_it(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = FedBuff(one_weight(3, 2), plain(2))
    zero, one, two = strategy.start().tasks
    (again,) = strategy.receive(answered(two, weight(4.0))).tasks
    strategy.receive(answered(one, weight(2.0)))
    strategy.receive(answered(again, weight(6.0)))  # pulled 0, before the model moved to 3
    strategy.receive(answered(zero, weight(1.0)))
    assert strategy.model()["weight"].item() == pytest.approx(3.0 + (6.0 + 1.0) / 2**0.5 / 2)


def test_the_servers_learning_rate_scales_the_step(one_weight: Jobs, answered: Answers) -> None:
    settings = FedBuffSettings(buffer_size=2, server_learning_rate=0.5)
    strategy = FedBuff(one_weight(2, 1, start=1.0), settings)
    for task in strategy.start().tasks:
        strategy.receive(answered(task, weight(5.0)))
    assert strategy.model()["weight"].item() == pytest.approx(3.0)


def test_by_default_the_changes_of_a_round_add_up_to_about_their_average(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = FedBuff(one_weight(4, 1), FedBuffSettings(buffer_size=1))
    for task in strategy.start().tasks:
        strategy.receive(answered(task, weight(1.0)))
    # η = √(1/4), and the staleness of the four changes is 0 to 3.
    expected = 0.5 * (1 + 2**-0.5 + 3**-0.5 + 4**-0.5)
    assert strategy.model()["weight"].item() == pytest.approx(expected)


def test_workers_never_wait_for_the_buffer(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = FedBuff(one_weight(3, 2), plain(6))
    line = timeline(strategy, times=[5, 3, 2], train=lambda _: weight(1.0)).start()
    for _ in range(5):
        line.step()
        assert strategy.model()["weight"].item() == 0, "the buffer is not full"
    line.step()
    assert [worker for _, worker in line.arrivals] == [2, 1, 2, 0, 1, 0]
    assert strategy.model()["weight"].item() > 0


def test_a_buffer_that_no_run_of_this_length_fills_is_refused(one_weight: Jobs) -> None:
    with pytest.raises(SettingError) as refused:
        FedBuff(one_weight(3, 2), plain(7))
    assert str(refused.value) == (
        "buffer_size is 7, but 3 workers send only 6 changes in 2 rounds, so the model would never "
        "move; make buffer_size smaller or rounds larger."
    )


def test_what_a_lost_worker_had_sent_still_counts(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = FedBuff(one_weight(2, 2), plain(2))
    line = timeline(strategy, times=[3, 1], train=lambda task: weight(task.worker + 1.0)).start()
    line.step()
    line.lose(1)
    line.step()
    assert strategy.model()["weight"].item() == pytest.approx((2.0 + 1.0) / 2)
