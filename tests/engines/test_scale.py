"""Many workers in one process: what grows with their number, and what must not."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.events import Event, UpdateArrived
from benchmarks import scale
from benchmarks.scale import ScaleJob, ScaleResult
from tests.processes import PATIENCE_S, started

SAMPLES = 240


def wide() -> nn.Module:
    """A model that is much larger than everybody's data: 1.3 MiB."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 640), nn.ReLU(),
        nn.Linear(640, 2),
    )  # fmt: skip


def data() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 8, generator=dice), torch.arange(SAMPLES) % 2


def run(listener: Callable[[Event], None] = lambda _: None, **settings: Any) -> adaptcl.Result:
    defaults: dict[str, Any] = {
        "rounds": 2,
        "threads": 1,
        "batch_size": 2,
        "evaluate_every": 9,
        "sigma": 4.0,
    }
    defaults |= {"figures": "none"}
    return adaptcl.run(wide(), data(), data(), listeners=[listener], **{**defaults, **settings})


def bytes_in_tensors() -> int:
    """Bytes of all tensors that were made since the last `gc.freeze()`, each storage once."""
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if type(each) in (Tensor, nn.Parameter) and each.device.type == "cpu"
    }
    return sum(storages.values())


def most_at_once(**settings: Any) -> int:
    """The most bytes in tensors at the arrival of any update."""
    seen: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, UpdateArrived):
            seen.append(bytes_in_tensors())

    gc.collect()
    gc.freeze()
    try:
        run(look, **settings)
    finally:
        gc.unfreeze()
    return max(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "fedavg"},
        {"strategy": "heterofl", "width_levels": (1.0, 0.9, 0.8, 0.7)},
        {"strategy": "fedavg", "codec": "int8"},
    ],
    ids=["whole models", "sub-models", "changes"],
)
def test_forty_workers_need_no_memory_for_forty_models(settings: dict[str, Any]) -> None:
    model = sum(tensor.nbytes for tensor in wide().state_dict().values())
    # The model as it was given, as it is and as it will be; the sum, in double precision; a
    # training with its gradients and momentum; three updates at most; and room for a few more.
    assert most_at_once(workers=40, **settings) < 15 * model


@pytest.mark.slow
def test_the_same_seed_draws_the_same_participants_after_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "strategy": "adaptcl", "workers": 30, "participants": 4, "rounds": 6,
        "pruning_interval": 2, "min_pruned_rate": 0.0, "max_importance_lost": 1.0,
    }  # fmt: skip

    class StoppedError(BaseException):
        pass

    def stop(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.round == 4:
            raise StoppedError

    whole = run(**settings)
    with pytest.raises(StoppedError):
        run(stop, out=tmp_path, **settings)
    resumed = run(out=tmp_path, resume=True, **settings)
    assert resumed.rounds == whole.rounds
    assert {len(record.participants) for record in whole.rounds} == {4}
    one, other = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ssp-s", "fedbuff"])
def test_a_hundred_workers_without_a_barrier_are_no_trouble(strategy: str) -> None:
    result = run(strategy=strategy, workers=120, rounds=1)
    assert len(result.rounds[0].workers) == 120


@pytest.mark.slow
def test_a_process_with_two_thousand_workers_stays_small(tmp_path: Path) -> None:
    few = in_its_own_process(ScaleJob(10, 5, rounds=1), tmp_path / "few")
    many = in_its_own_process(ScaleJob(2_000, 20, rounds=1), tmp_path / "many")
    assert many.updates == 20
    # Sixteen MiB of images, and a few KiB for each worker.
    assert many.memory - few.memory < 100 * 2**20


def in_its_own_process(job: ScaleJob, answer: Path) -> ScaleResult:
    with started(write_down, job, answer) as process:
        process.join(PATIENCE_S)
    return ScaleResult(**json.loads(answer.read_text()))


def write_down(job: ScaleJob, answer: Path) -> None:
    answer.write_text(json.dumps(asdict(scale.run(job))))
