"""A model on its way to a worker, an update on its way back, and frozen tensors once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import adaptcl
from adaptcl.codecs import CODECS, DOWN_CODECS, codec
from adaptcl.codecs.codec import Memory, Payload
from adaptcl.data import Samples
from adaptcl.errors import UpdateError
from adaptcl.training import Recipe, Task, Update
from adaptcl.training.wire import (
    FrozenTensorHolders,
    HeldFrozenTensors,
    LackingError,
    decode_model,
    decode_update,
    digest,
    encode_model,
    encode_update,
    encoded_size,
    frozen_tensors,
    sent_task,
)
from adaptcl.units import Kept, UnitMap, cut, trace
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after

PLAIN = codec("plain", {})
DOWN = [name for name in DOWN_CODECS if name in CODECS]


class Tied(nn.Module):
    """Two layers with one weight, and a batch norm that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.b.weight = self.a.weight
        self.norm = self.again = nn.BatchNorm1d(24)
        self.scores = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.a(torch.relu(self.stem(x.flatten(1))))))
        scores: Tensor = self.scores(torch.relu(self.again(self.b(x))))
        return scores


@pytest.fixture(scope="module")
def tied() -> tuple[UnitMap, Task, Update]:
    """A pruned worker's task about such a net, and its update."""
    torch.manual_seed(0)
    model = Tied()
    units = trace(model, torch.zeros(2, 1, 8, 8))
    kept = torch.arange(units.count) % 3 > 0
    task = Task(0, 1, cut(model.state_dict(), units, kept), kept, Recipe())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.01)
    return units, task, Update(0, 1, cut(model.state_dict(), units, kept), kept, 40, 1.5)


@pytest.mark.parametrize("name", CODECS)
def test_tied_tensors_arrive_tied_and_travel_once(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    units, task, update = tied
    chosen = codec(name, {"dgc_sparsity": 0.99, "dgc_warmup": 0})
    payload, _ = encode_update(update, task, units, chosen, Memory())
    assert not any(entry.endswith(("b.weight", "again.weight")) for entry in payload.tensors)
    received = decode_update(payload, update, sent_task(task, units, PLAIN), units, chosen).state
    assert received.keys() == task.state.keys()
    assert torch.equal(received["a.weight"], received["b.weight"])
    assert torch.equal(received["norm.running_var"], received["again.running_var"])
    assert not torch.equal(received["a.weight"], task.state["a.weight"])


@pytest.mark.parametrize("name", CODECS)
def test_no_further_name_of_a_tied_tensor_can_be_set_alone(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    units, task, update = tied
    chosen = codec(name, {})
    payload, _ = encode_update(update, task, units, chosen, Memory())
    entry = "b.weight" if name == "plain" else "whole:b.weight"
    lying = Payload({**payload.tensors, entry: torch.zeros_like(update.state["b.weight"])})
    with pytest.raises(UpdateError, match=f"no place in it: '{entry}'"):
        decode_update(lying, update, sent_task(task, units, PLAIN), units, chosen)


@pytest.mark.parametrize("name", CODECS)
def test_the_size_of_an_update_is_known_before_it_is_trained(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    units, task, update = tied
    payload, _ = encode_update(update, task, units, codec(name, {}), Memory())
    assert encoded_size(task, task.kept, units, codec(name, {})) == payload.nbytes


@pytest.mark.parametrize("name", DOWN)
def test_a_model_is_read_as_the_server_knows_it_is_with_tied_tensors_once(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    units, task, _ = tied
    payload = encode_model(task, units, codec(name, {}))
    assert not any(entry.endswith(("b.weight", "again.weight")) for entry in payload.tensors)
    assert encoded_size(task, task.kept, units, codec(name, {})) == payload.nbytes
    read = decode_model(payload, {}, task.kept, units, codec(name, {}))
    known = sent_task(task, units, codec(name, {})).read.state
    assert list(read) == list(known) == list(task.state)
    assert all(torch.equal(read[each], known[each]) for each in read)
    for each, tensor in task.state.items():
        off_by = (read[each].double() - tensor.double()).abs().max()
        assert off_by <= {"plain": 0, "fp16": 2**-11, "int8": 1 / 254}[name] * tensor.abs().max()


@pytest.mark.parametrize("name", DOWN)
def test_a_change_smaller_than_the_rounding_of_its_model_arrives(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    """It is added to what the server has. A worker that changes nothing gives exactly that."""
    units, task, update = tied
    delivered = sent_task(task, units, codec(name, {}))
    for change in (0.0, 1e-6):
        state = {
            each: t + change if each in units.parameters else t
            for each, t in delivered.read.state.items()
        }
        sent = replace(update, state={**state, "b.weight": state["a.weight"]})
        payload, _ = encode_update(sent, delivered.read, units, PLAIN, Memory())
        received = decode_update(payload, sent, delivered, units, PLAIN).state
        for each in units.parameters:
            moved = (received[each] - task.state[each]).mean()
            assert moved.item() == pytest.approx(change, abs=change / 5)


@pytest.mark.parametrize(
    ("name", "strategy", "settings"),
    [
        ("plain", "fedavg", {}),
        ("dgc", "adaptcl", {"pruned_rates": ((0.3, 0.1),), "first_pruning": 2, "dgc_warmup": 0}),
        ("int8", "ssp-s", {}),
    ],
)
def test_a_run_ends_with_tied_tensors_tied(
    name: str, strategy: str, settings: dict[str, Any], digits: Samples, tmp_path: Path
) -> None:
    adaptcl.run(
        Tied(),
        digits,
        digits,
        strategy=strategy,
        codec=name,
        workers=2,
        rounds=3,
        learning_rate=0.1,
        threads=1,
        out=tmp_path / "run",
        figures="none",
        **settings,
    )
    state = load_file(tmp_path / "run" / "model.safetensors")
    for further, first in {"b.weight": "a.weight", "again.running_var": "norm.running_var"}.items():
        assert torch.equal(state[further], state[first])


# Frozen tensors travel once and stay as they are.


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
