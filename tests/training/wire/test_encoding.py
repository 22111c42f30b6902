"""A model on its way to a worker, and an update on its way back."""

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
from adaptcl.training.wire.encoding import (
    decode_model,
    decode_update,
    encode_model,
    encode_update,
    model_size,
    sent_task,
    update_size,
)
from adaptcl.units import UnitMap, cut, trace

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
    assert update_size(task, task.kept, units, codec(name, {})) == payload.nbytes


@pytest.mark.parametrize("name", DOWN)
def test_a_model_is_read_as_the_server_knows_it_is_with_tied_tensors_once(
    name: str, tied: tuple[UnitMap, Task, Update]
) -> None:
    units, task, _ = tied
    payload = encode_model(task, units, codec(name, {}))
    assert not any(entry.endswith(("b.weight", "again.weight")) for entry in payload.tensors)
    assert model_size(task, units, codec(name, {})) == payload.nbytes
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
