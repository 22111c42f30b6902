"""All bytes that crossed the wire are counted, whatever became of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import Result
from adaptcl.events import Event, RoundFinished, UpdateArrived, WorkerLost

WORKERS = 4
WEIGHTS = 4 * (8 * 16 + 16 + 16 * 2 + 2)
"""Bytes of the model, and so of a task or an update of all of it."""


@pytest.fixture(scope="module")
def samples() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 8, generator=dice)
    return inputs, (inputs.sum(1) > 0).long()


def run(samples: tuple[Tensor, Tensor], **settings: Any) -> tuple[Result, list[Event]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    heard: list[Event] = []
    listeners = [heard.append, *settings.pop("listeners", [])]
    given = {"strategy": "fedavg", "workers": WORKERS, "rounds": 6, "sigma": 8, **settings}
    return adaptcl.run(model, samples, samples, listeners=listeners, **given), heard


def used(result: Result) -> tuple[int, int]:
    workers = [worker for record in result.rounds for worker in record.workers]
    return sum(w.bytes_sent for w in workers), sum(w.bytes_received for w in workers)


def moved(result: Result) -> tuple[int, int]:
    return result.summary.bytes_sent, result.summary.bytes_received


@pytest.mark.parametrize("strategy", ["fedavg", "adaptcl", "fedasync-s", "fedbuff"])
def test_where_every_update_is_used_these_are_the_bytes_of_the_updates(
    samples: tuple[Tensor, Tensor], strategy: str
) -> None:
    harmless = {"max_importance_lost": 1.0} if strategy == "adaptcl" else {}
    result, _ = run(samples, strategy=strategy, **harmless)
    assert moved(result) == used(result)
    assert all(record.bytes_sent for record in result.rounds)


def test_updates_that_were_dropped_as_late_have_travelled(samples: tuple[Tensor, Tensor]) -> None:
    result, heard = run(samples, deadline=0.5, late_updates="drop", rounds=10)
    arrived = sum(isinstance(event, UpdateArrived) for event in heard)
    assert arrived > sum(result.summary.updates), "some were dropped"
    assert moved(result) == (arrived * WEIGHTS, arrived * WEIGHTS)


def test_a_late_update_that_counts_is_counted_once(samples: tuple[Tensor, Tensor]) -> None:
    result, heard = run(samples, deadline=0.5, late_updates="count", rounds=10)
    arrived = sum(isinstance(event, UpdateArrived) for event in heard)
    assert moved(result) == used(result) == (arrived * WEIGHTS, arrived * WEIGHTS)


def test_of_a_worker_that_went_away_the_task_has_travelled_and_no_update(
    samples: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,worker,bandwidth,speed,available\n1,0,1,1,0\n")
    result, heard = run(samples, trace=str(trace))
    assert sum(isinstance(event, WorkerLost) for event in heard) == 1
    sent, received = used(result)
    assert moved(result) == (sent + WEIGHTS, received)
    assert (result.rounds[0].bytes_sent, result.rounds[1].bytes_sent) == (
        WORKERS * WEIGHTS,
        (WORKERS - 1) * WEIGHTS,
    )


@pytest.mark.parametrize(("codec", "share"), [("fp16", 0.5), ("int8", 0.25)])
def test_a_codec_makes_both_ways_smaller_and_the_rounds_shorter(codec: str, share: float) -> None:
    inputs = torch.randn(40, 400, generator=torch.Generator().manual_seed(0))
    samples = inputs, (inputs.sum(1) > 0).long()

    def found(**settings: Any) -> tuple[int, int, float, float]:
        model = nn.Sequential(nn.Linear(400, 100), nn.ReLU(), nn.Linear(100, 2))
        result = adaptcl.run(
            model, samples, samples, strategy="fedavg", workers=2, rounds=2, **settings
        )
        last = result.rounds[-1].workers[-1]
        return *moved(result), last.send_s, last.receive_s

    plain = found()
    assert found(codec=codec) == pytest.approx([share * each for each in plain], rel=0.03)
    up_alone = found(codec=codec, codec_down="plain")
    assert up_alone[::2] == pytest.approx(plain[::2])
    assert up_alone[1::2] == pytest.approx(found(codec=codec)[1::2])


class CutOffError(BaseException):
    """Ends a run in the middle."""


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_goes_on_counts_what_it_would_have_counted(
    samples: tuple[Tensor, Tensor], tmp_path: Path, every: int
) -> None:
    settings: dict[str, Any] = {
        "deadline": 0.5,
        "late_updates": "drop",
        "rounds": 9,
        "checkpoint_every": every,
        "codec": "int8",
    }
    whole, _ = run(samples, **settings)

    def cut_off(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == 5:
            raise CutOffError

    folder = {"out": tmp_path / "run"}
    with pytest.raises(CutOffError):
        run(samples, listeners=[cut_off], **settings, **folder)
    resumed, _ = run(samples, resume=True, **settings, **folder)
    assert moved(resumed) == moved(whole) > used(whole)
    assert resumed.rounds == whole.rounds
