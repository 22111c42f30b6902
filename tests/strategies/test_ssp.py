from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies import Job
from adaptcl.strategies.fedasync import FedAsync, FedAsyncSettings
from adaptcl.strategies.ssp import SSP, SSPSettings
from adaptcl.strategies.synchronous import FedAVGS, SynchronousSettings
from adaptcl.training import Arrival

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]


def test_a_change_counts_one_part_in_as_many_as_there_are_workers(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = SSP(one_weight(4, 2, start=10.0), SSPSettings())
    first, second, *_ = strategy.start().tasks
    strategy.receive(answered(first, {"weight": torch.tensor([[18.0]])}))
    assert strategy.model()["weight"].item() == 12.0  # 10 + (18 - 10) / 4
    strategy.receive(answered(second, {"weight": torch.tensor([[6.0]])}))
    assert strategy.model()["weight"].item() == 11.0  # 12 + (6 - 10) / 4: it had pulled 10


def test_the_other_reading_mixes_models_with_the_same_coefficient(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = SSP(one_weight(4, 2, start=10.0), SSPSettings(ssp_merging="model"))
    first, second, *_ = strategy.start().tasks
    strategy.receive(answered(first, {"weight": torch.tensor([[18.0]])}))
    assert strategy.model()["weight"].item() == 12.0  # 3/4 · 10 + 1/4 · 18
    strategy.receive(answered(second, {"weight": torch.tensor([[6.0]])}))
    assert strategy.model()["weight"].item() == 10.5  # 3/4 · 12 + 1/4 · 6, whatever it had pulled


def test_a_worker_too_far_ahead_waits_for_the_slowest(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = SSP(one_weight(2, 6), SSPSettings(staleness_threshold=1))
    line = timeline(strategy, times=[10, 1]).start().run()
    # Leading by 1, worker 1 may do one more round, which makes its lead 2; then it waits.
    ahead = [when for when, worker in line.arrivals if worker == 1]
    assert ahead == [1, 2, 11, 21, 31, 41]
    assert [when for when, worker in line.arrivals if worker == 0] == [10, 20, 30, 40, 50, 60]


def test_a_waiting_worker_gets_the_model_as_it_is_when_its_wait_ends(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = SSP(one_weight(2, 6), SSPSettings(staleness_threshold=0))
    line = timeline(strategy, times=[10, 1]).start()
    line.step()
    assert 1 not in line.open
    line.step()
    assert line.open[1][1].state is strategy.model()


@given(
    times=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    threshold=st.integers(0, 3),
    rounds=st.integers(1, 6),
)
def test_nobody_ever_leads_by_more_than_the_threshold_and_one_round(
    one_weight: Jobs, timeline: Timelines, times: list[int], threshold: int, rounds: int
) -> None:
    strategy = SSP(one_weight(len(times), rounds), SSPSettings(threshold))
    line = timeline(strategy, times).start()
    while not strategy.finished:
        line.step()
        assert max(strategy.done) - min(strategy.done) <= threshold + 1
    assert strategy.done == [rounds] * len(times)


def test_threshold_0_is_fedavg_except_for_statistics(
    with_batch_norm: Jobs, timeline: Timelines
) -> None:
    job, times = with_batch_norm(3, 4), [5, 3, 2]
    ssp = timeline(SSP(job, SSPSettings(staleness_threshold=0)), times).start().run()
    fedavg = timeline(FedAVGS(job, SynchronousSettings()), times).start().run()
    assert ssp.arrivals == fedavg.arrivals
    for name, tensor in fedavg.strategy.model().items():
        if name not in job.units.buffers:
            torch.testing.assert_close(ssp.strategy.model()[name], tensor, msg=name)


def test_a_threshold_of_all_rounds_never_blocks(one_weight: Jobs, timeline: Timelines) -> None:
    job, times = one_weight(3, 5), [7, 3, 1]
    ssp = timeline(SSP(job, SSPSettings(staleness_threshold=5)), times).start().run()
    free = timeline(FedAsync(job, FedAsyncSettings()), times).start().run()
    assert ssp.arrivals == free.arrivals


def test_losing_the_slowest_lets_the_others_go(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = SSP(one_weight(3, 6), SSPSettings(staleness_threshold=0))
    line = timeline(strategy, times=[100, 2, 1]).start()
    line.step()
    line.step()
    assert set(line.open) == {0}
    line.lose(0)
    assert set(line.open) == {1, 2}
    line.run()
    assert strategy.done == [0, 6, 6]


def test_a_worker_that_comes_back_begins_beside_the_slowest(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = SSP(one_weight(3, 9), SSPSettings(staleness_threshold=1))
    line = timeline(strategy, times=[3, 2, 1]).start()
    line.lose(0)
    while min(strategy.done[1:]) < 5:
        line.step()
    line.join(0)
    assert line.open[0][1].round == 6
    line.run()
    assert strategy.done == [9, 9, 9]
    assert [worker for _, worker in line.arrivals].count(0) == 4


def test_the_slowest_beside_whom_it_begins_is_not_one_who_is_away(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = SSP(one_weight(3, 9), SSPSettings(staleness_threshold=1))
    line = timeline(strategy, times=[3, 2, 1]).start()
    line.lose(0)
    line.lose(1)
    while strategy.done[2] < 5:
        line.step()
    line.join(1)
    assert line.open[1][1].round == 6


def test_a_worker_back_at_once_does_its_round_again(one_weight: Jobs, timeline: Timelines) -> None:
    strategy = SSP(one_weight(2, 4), SSPSettings())
    line = timeline(strategy, times=[3, 1]).start()
    line.step()
    line.lose(1)
    line.join(1)
    assert line.open[1][1].round == 2
