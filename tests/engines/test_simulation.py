"""The engine with real trainings: a small net on the shipped digits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import adaptcl
from adaptcl import Result
from adaptcl.codecs import CODECS, Memory, Parcel, Payload, codecs
from adaptcl.codecs.codec import Plain
from adaptcl.data import load
from adaptcl.engines.environment import Environment
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.engines.simulation import SimulatedTransport
from adaptcl.errors import AdaptCLError
from adaptcl.events import Event, RoundFinished, TaskSent, UpdateArrived, WorkerJoined, WorkerLost
from adaptcl.runs.forecast import Untrained
from adaptcl.units import UnitMap

SOME = ("fedavg-s", "adaptcl", "fedbuff", "ssp-s")
"""Strategies that differ in what the engine sees: with a barrier, with prunings whose times nobody
knows beforehand, and without a barrier."""
SETTINGS = {
    "workers": 3,
    "rounds": 4,
    "batch_size": 16,
    "train_time": 20.0,
    "bandwidth_max": 0.005,
    "sigma": 2.0,
}


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(dropout), nn.Flatten(), nn.Linear(72, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = load("digits")
    train, test = data.train, data.test
    return (train.batch(torch.arange(240)), test.batch(torch.arange(100)))


@pytest.fixture
def two_cores() -> Iterator[None]:
    """As if on a machine of two cores, whatever this one is."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Heard(list[Event]):
    """A listener that remembers."""

    def __call__(self, event: Event) -> None:
        self.append(event)


def trained(
    digits: Any, strategy: str, heard: Heard | None = None, model: nn.Module | None = None,
    **settings: Any,
) -> Result:  # fmt: skip
    train, test = digits
    listeners = [heard] if heard is not None else []
    # What is tested is the clock: everybody prunes, and no pruning is warned of.
    calm = {"max_importance_lost": 1.0, "least_speed_up": 1.0}
    harmless = calm if strategy == "adaptcl" else {}
    return adaptcl.run(
        model or net(), train, test, listeners=listeners, strategy=strategy,
        **{**SETTINGS, **harmless, **settings},
    )  # fmt: skip


def trace_file(folder: Path, rows: str) -> str:
    path = folder / "trace.csv"
    path.write_text("time_s,worker,bandwidth,speed,available\n" + rows)
    return str(path)


def same(first: Result, second: Result) -> None:
    """Round by round the same numbers, and in the end the same model, bit for bit."""
    lines = [[json.dumps(r.to_json()) for r in each.rounds] for each in (first, second)]
    assert lines[0] == lines[1]
    one, other = (each.model.state_dict() for each in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


# What a codec remembers ------------------------------------------------------------------------


class Numbered(Plain):
    """Remembers the rounds by whose updates it has sent something."""

    encodes_models = False
    known: ClassVar[list[list[list[int]]]] = []
    """By worker, in the order of their first updates, what it knew before each update."""

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        payload, _ = super().encode(parcel, memory)
        rounds = memory.tensors.get("rounds", torch.zeros(0, dtype=torch.int64))
        if not len(rounds):
            self.known.append([])
        worker = memory.tensors.get("worker", torch.tensor(len(self.known) - 1))
        self.known[int(worker)].append(rounds.tolist())
        rounds = torch.cat([rounds, torch.tensor([parcel.round])])
        return payload, Memory({"rounds": rounds, "worker": worker})


def known_before_each_update(
    digits: Any, late_updates: str
) -> tuple[Result, list[list[list[int]]]]:
    """Of the fastest of three workers first; two of them are often late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CODECS, "fp16", Numbered)
        patch.setattr(Numbered, "known", [])
        settings: dict[str, Any] = {"sigma": 4.0, "deadline": 0.6, "rounds": 8, "threads": 1}
        result = trained(digits, "fedavg-s", codec="fp16", late_updates=late_updates, **settings)
        assert len(Numbered.known) == 3
        return result, Numbered.known


def test_by_an_update_that_was_dropped_a_codec_has_sent_nothing(digits: Any) -> None:
    result, known = known_before_each_update(digits, "drop")
    for worker, before in zip((2, 1, 0), known, strict=True):
        used = [r.round for r in result.rounds if worker in [each.worker for each in r.workers]]
        assert all(rounds == used[: len(rounds)] for rounds in before)
    assert any(len(before) > len(before[-1]) + 1 for before in known), "some were dropped"


def test_by_an_update_that_was_counted_late_a_codec_has_sent_it(digits: Any) -> None:
    _, known = known_before_each_update(digits, "count")
    for before in known:
        assert [len(rounds) for rounds in before] == list(range(len(before)))


# Time ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SOME)
def test_events_come_in_order_of_virtual_time(digits: Any, strategy: str) -> None:
    heard = Heard()
    result = trained(digits, strategy, heard, jitter=0.1)
    times = [
        e.virtual_time_s if isinstance(e, UpdateArrived) else e.record.virtual_time_s
        for e in heard
        if isinstance(e, UpdateArrived | RoundFinished)
    ]
    assert times == sorted(times)
    assert [r.round for r in result.rounds] == list(range(1, len(result.rounds) + 1))
    arrivals = sum(isinstance(e, UpdateArrived) for e in heard)
    assert arrivals == sum(len(r.workers) for r in result.rounds) >= 12


def test_a_task_is_sent_with_the_times_that_it_will_take(digits: Any) -> None:
    heard = Heard()
    result = trained(digits, "adaptcl", heard, jitter=0.1)
    sent = {(e.worker, e.round): e.expected for e in heard if isinstance(e, TaskSent)}
    known = 0
    for record in result.rounds:
        for worker in record.workers:
            expected = sent[worker.worker, record.round]
            assert expected is not None
            assert expected.send == worker.send_s
            if worker.pruned_rate:
                assert expected.train == math.inf, "how much is cut is not known before"
            else:
                known += 1
                assert (expected.train, expected.receive) == (worker.train_s, worker.receive_s)
    assert 0 < known < sum(len(record.workers) for record in result.rounds)


def test_with_a_barrier_a_round_takes_as_long_as_its_slowest_worker(digits: Any) -> None:
    result = trained(digits, "fedavg-s", jitter=0.2)
    now = 0.0
    for record in result.rounds:
        now += max(worker.update_time_s for worker in record.workers)
        assert record.virtual_time_s == pytest.approx(now)
        times = [worker.update_time_s for worker in record.workers]
        assert record.heterogeneity == pytest.approx(heterogeneity(times))
    assert result.summary.virtual_time_s == result.rounds[-1].virtual_time_s


# Threads ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("strategy", SOME)
def test_the_number_of_threads_changes_nothing(digits: Any, strategy: str) -> None:
    first, second = (trained(digits, strategy, threads=threads) for threads in (1, 3))
    same(first, second)
    assert first.summary.best_accuracy > 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_a_model_with_dropout_gives_the_same_on_any_number_of_threads(digits: Any) -> None:
    first, second, other = (
        trained(digits, "adaptcl", model=net(0.3), threads=threads, seed=seed, rounds=2)
        for threads, seed in ((1, 1), (3, 1), (3, 2))
    )
    same(first, second)
    assert first.rounds != other.rounds


class Recomputing(nn.Module):
    """Draws where no operation shows, so that its tasks share the process's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        images = F.relu(self.norm(self.first(images)))
        for _ in range(8):
            images = checkpoint(self.drop, images, use_reentrant=False)
        scores: Tensor = self.last(images.mean((2, 3)))
        return scores


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_nothing_draws_from_the_generator_that_workers_share_while_they_train(digits: Any) -> None:
    torch.manual_seed(0)
    model = Recomputing()
    first, *others = (
        trained(digits, "fedavg", model=model, threads=threads, rounds=2) for threads in (1, 2, 2)
    )
    for other in others:
        same(first, other)


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_a_run_leaves_pytorchs_threads_and_generator_as_they_were(digits: Any) -> None:
    model = net(0.3)
    before = torch.get_rng_state()
    trained(digits, "adaptcl", model=model, rounds=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == 2


# Presence --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_is_away_is_missed_until_it_comes_back(digits: Any, tmp_path: Path) -> None:
    whole = trained(digits, "fedavg-s", rounds=6)
    ends = [r.virtual_time_s for r in whole.rounds]
    # The slowest leaves in the middle of round 2; the others then need less for a round.
    rows = f"{ends[0] + 5},0,1,1,0\n{ends[0] + 120},0,1,1,1\n"
    heard = Heard()
    result = trained(digits, "fedavg-s", heard, rounds=6, trace=trace_file(tmp_path, rows))
    lost = next(e for e in heard if isinstance(e, WorkerLost))
    joined = next(e for e in heard if isinstance(e, WorkerJoined))
    assert (lost.worker, lost.round, joined.worker) == (0, 2, 0)
    took_part = {r.round: [w.worker for w in r.workers] for r in result.rounds}
    assert took_part[1] == [0, 1, 2]
    assert took_part[2] == [1, 2]
    assert took_part[joined.round] == [0, 1, 2]
    assert took_part[6] == [0, 1, 2]
    away = [r for r in result.rounds if len(r.workers) == 2]
    assert len(away) == joined.round - 2
    for record in away:
        times = [w.update_time_s for w in record.workers]
        assert record.heterogeneity == pytest.approx(heterogeneity(times))
    assert result.summary.virtual_time_s < whole.summary.virtual_time_s
    # It came back in the middle of a round, which then waits for it.
    back = result.rounds[joined.round - 1]
    assert back.virtual_time_s == pytest.approx(ends[0] + 120 + back.workers[0].update_time_s)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SOME)
def test_a_worker_that_never_comes_back_does_not_hold_up_the_others(
    digits: Any, tmp_path: Path, strategy: str
) -> None:
    rows = "30,2,1,1,0\n"
    result = trained(digits, strategy, trace=trace_file(tmp_path, rows), evaluate_every=3)
    assert result.rounds[-1].accuracy == result.summary.accuracy
    assert {w.worker for w in result.rounds[-1].workers} <= {0, 1}


def test_of_a_worker_that_came_back_no_time_is_known_before_its_next_update(tmp_path: Path) -> None:
    """It may come back quite another; without a barrier, rounds close while it is at work."""
    leaves, returns = 100.0, 101.0
    rows = f"{leaves},0,1,1,0\n{returns},0,1,0.1,1\n"
    heard = Heard()
    data = torch.randn(24, 5), torch.arange(24) % 3
    result = adaptcl.run(
        nn.Linear(5, 3), data, data, listeners=[heard], strategy="fedasync-s",
        workers=3, rounds=8, epochs=1, profile_epochs=1.0, train_time=20.0, sigma=2.0,
        trace=trace_file(tmp_path, rows),
    )  # fmt: skip
    of_it = [e.virtual_time_s for e in heard if isinstance(e, UpdateArrived) and e.worker == 0]
    first, again = of_it[0], min(time for time in of_it if time > returns)
    assert first < leaves
    known = {
        record.virtual_time_s: record.heterogeneity is not None
        for record in result.rounds
        if record.virtual_time_s > first
    }
    assert any(returns < time < again for time in known)
    assert known == {time: not returns < time < again for time in known}


def test_the_clock_waits_while_everybody_is_away(digits: Any, tmp_path: Path) -> None:
    rows = "1,*,1,1,0\n500,1,1,1,1\n"
    result = trained(digits, "fedavg-s", rounds=2, trace=trace_file(tmp_path, rows))
    assert [[w.worker for w in r.workers] for r in result.rounds] == [[1], [1]]
    first = result.rounds[0]
    assert first.virtual_time_s == pytest.approx(500 + first.workers[0].update_time_s)


@pytest.mark.parametrize("strategy", SOME)
def test_when_nobody_is_left_the_run_ends_with_one_sentence(
    digits: Any, tmp_path: Path, strategy: str
) -> None:
    with pytest.raises(AdaptCLError) as ended:
        trained(digits, strategy, trace=trace_file(tmp_path, "30,*,1,1,0\n"))
    assert str(ended.value) == (
        "At 30.0 s no worker is left and none will come back; the run cannot go on."
    )


# A snapshot that cannot be read ------------------------------------------------------------------


def test_closing_does_not_hide_why_a_simulation_could_not_be_opened(
    units: UnitMap, make_environment: Callable[..., Environment]
) -> None:
    untrained = Untrained(units, (1, 1), codecs("plain", "same", {}))
    transport = SimulatedTransport(untrained, make_environment(), 2, threads=1)
    with pytest.raises(KeyError, match="_presence_seen"), closing(transport):
        list(transport.open({"_now": 3.0}))
