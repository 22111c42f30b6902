"""Frozen tensors travel once and stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.training import Recipe, Task
from adaptcl.training.wire.frozen import (
    FrozenTensorHolders,
    HeldFrozenTensors,
    LackingError,
    digest,
    frozen_tensors,
)
from adaptcl.units import Kept, UnitMap, cut, trace
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after


class Finetuned(nn.Module):
    """A frozen layer with a frozen bias, a batch norm that counts, an index, and a new head."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.norm = nn.Linear(6, 32), nn.BatchNorm1d(32)
        self.backbone.requires_grad_(False)
        self.backbone.bias[0] = -0.0  # which plus nothing is 0.0
        self.register_buffer("order", torch.tensor([3, 2, 1, 0]))
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.norm(self.backbone(x))))
        return scores[:, self.order]


FROZEN = 4 * (6 * 32 + 32) + 8 * 4
STATISTICS = 2 * 4 * 32 + 8
TRAINED = 4 * (2 * 32 + 32 * 4 + 4) + STATISTICS


def finetune(**settings: Any) -> adaptcl.Result:
    torch.manual_seed(0)
    defaults: dict[str, Any] = {
        **{"train": clouds(60), "test": clouds(30, 1), "workers": 2, "rounds": 4},
        **{"batch_size": 16, "bandwidth_max": 0.01, "threads": 1},
    }
    return adaptcl.run(Finetuned(), **{**defaults, **settings})


def traffic(result: adaptcl.Result, worker: int) -> list[tuple[int, int]]:
    """Bytes that went down to a worker and up from it, task by task."""
    tasks = [each for record in result.rounds for each in record.workers if each.worker == worker]
    return [(each.bytes_sent, each.bytes_received) for each in tasks]


@pytest.mark.parametrize("strategy", ["fedavg", "ssp-s"])
def test_from_the_second_round_on_a_run_sends_what_is_trained(strategy: str) -> None:
    result = finetune(strategy=strategy)
    for worker in range(2):
        first, *later = traffic(result, worker)
        assert first == (TRAINED + FROZEN, TRAINED)
        assert set(later) == {(TRAINED, TRAINED)}


def test_frozen_tensors_are_not_rounded_on_the_way_that_they_take_once() -> None:
    rounded = TRAINED - 4 * 32 * 4 + 32 * 4 + 4 * 4  # the weights of the head in eight bits
    first, *later = traffic(finetune(strategy="fedavg", codec="int8"), 0)
    assert first == (rounded + FROZEN, rounded)
    assert set(later) == {(rounded, rounded)}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("fedavg", {"averaging": 0.9, "codec": "int8", "optimizer": "adamw"}),
        ("adaptcl", {"pruned_rates": ((0.3, 0.1),), "first_pruning": 2, "proximal": 0.1}),
        ("adaptcl", {"aggregation": "by-change", "fading": 0.5, "pruned_rates": ((0.3, 0.1),)}),
        ("fedrolex", {}),
        ("fedasync-s", {"codec": "fp16"}),
        ("fedbuff", {}),
        ("dc-asgd-a-s", {}),
    ],
)
def test_a_run_ends_with_every_frozen_bit_as_it_was(
    strategy: str, settings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    before = Finetuned().state_dict()
    result = finetune(strategy=strategy, **settings)
    after = result.model.state_dict()
    lost = ~torch.stack(list(result.sub_models.distinct)).any(0)  # delivered as zeros
    assert not lost.all()
    for name in ("backbone.weight", "backbone.bias"):
        kept = (~lost).nonzero().flatten() if len(lost) else torch.arange(32)
        same = after[name].view(torch.int32) == before[name].view(torch.int32)
        assert bool(same[kept].all())
    assert torch.equal(after["order"], before["order"])
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(after["norm.running_mean"], before["norm.running_mean"])


def test_a_resumed_run_knows_who_has_the_frozen_tensors(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"strategy": "fedavg", "participants": 1, "rounds": 6}
    finetune(out=tmp_path / "whole", **settings)
    with pytest.raises(CutOffError):
        finetune(out=tmp_path / "broken", listeners=[cut_off_after(4)], **settings)
    finetune(out=tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


# Who has what ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Finetuned:
    return Finetuned()


@pytest.fixture(scope="module")
def units(model: Finetuned) -> UnitMap:
    return trace(model, torch.zeros(2, 6))


def task(model: nn.Module, units: UnitMap, kept: Kept) -> Task:
    return Task(0, 1, cut(model.state_dict(), units, kept), kept, Recipe())


def upto(units: UnitMap, count: int) -> Kept:
    return torch.arange(units.count) < count


def test_a_smaller_sub_model_needs_nothing_new_and_a_larger_one_does(
    model: Finetuned, units: UnitMap
) -> None:
    holders = FrozenTensorHolders(units)
    small, middle, large = (task(model, units, upto(units, count)) for count in (8, 16, 24))
    assert holders.lacks(middle)
    holders.answered(middle)
    assert [holders.lacks(each) for each in (small, middle, large)] == [False, False, True]
    again = FrozenTensorHolders(units)
    again.restore(holders.snapshot())
    assert [again.lacks(each) for each in (small, middle, large)] == [False, False, True]


def test_a_worker_cuts_the_frozen_tensors_of_a_smaller_sub_model_itself(
    model: Finetuned, units: UnitMap
) -> None:
    middle, small = (task(model, units, upto(units, count)) for count in (16, 8))
    copy = HeldFrozenTensors(middle.kept, frozen_tensors(middle.state, units), units)
    for each in (middle, small, middle):
        wanted = frozen_tensors(each.state, units)
        part = copy.part(each.kept, digest(wanted))
        assert all(torch.equal(part[name], tensor) for name, tensor in wanted.items())


def test_other_or_missing_tensors_are_found_by_their_hash(model: Finetuned, units: UnitMap) -> None:
    middle = task(model, units, upto(units, 16))
    tensors = frozen_tensors(middle.state, units)
    other = {**tensors, "backbone.bias": tensors["backbone.bias"] + 1}
    with pytest.raises(LackingError, match="other frozen tensors"):
        HeldFrozenTensors(middle.kept, other, units).part(middle.kept, digest(tensors))
    with pytest.raises(LackingError, match="lacks frozen tensors"):
        HeldFrozenTensors(middle.kept, tensors, units).part(units.everything(), digest(tensors))
