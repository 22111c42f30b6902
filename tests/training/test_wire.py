from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.codecs import CODECS, Codec, codec
from adaptcl.codecs.codec import Memory, Payload
from adaptcl.codecs.plain import Plain, PlainSettings
from adaptcl.errors import UpdateError
from adaptcl.pruning import prune
from adaptcl.training import Cut, Pruning, Recipe, Task, Update
from adaptcl.training.wire import check_header, check_tensors, pack, payload_bytes, unpack
from adaptcl.units import CutOnDemand, Kept, State, UnitMap, recut, trace
from adaptcl.units.finite import first_not_finite

Tasks = Callable[..., Task]
CODEC = Plain(PlainSettings())


@pytest.fixture
def part(units: UnitMap) -> Kept:
    """A sub-model that lacks units 1 and 9."""
    kept = units.everything()
    kept[[1, 9]] = False
    return kept


@pytest.fixture
def asked(task: Tasks, part: Kept) -> Task:
    """The task of a pruned worker."""
    return task(kept=part, worker=3, round=5)


@pytest.fixture
def answer(asked: Task) -> Update:
    """What an honest worker sends."""
    return Update(3, 5, {name: t + 1 for name, t in asked.state.items()}, asked.kept, 40, 1.5)


def sent(update: Update, task: Task, units: UnitMap, by: Codec = CODEC) -> Update:
    payload, _ = pack(update, task, units, by, Memory())
    return unpack(payload, update, task, units, by)


def test_an_honest_update_arrives_as_it_was_sent(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    received = sent(answer, asked, units)
    assert received.state.keys() == answer.state.keys()
    assert all(torch.equal(received.state[name], t) for name, t in answer.state.items())
    assert replace(received, state={}) == replace(answer, state={})


@pytest.mark.parametrize("importance", [torch.arange(14.0), None])
def test_a_worker_that_was_told_to_may_have_pruned(
    answer: Update, asked: Task, units: UnitMap, importance: Tensor | None
) -> None:
    smaller = prune(units, asked.kept, torch.arange(14.0), 0.2)
    pruned = replace(answer, kept=smaller, state=recut(answer.state, units, asked.kept, smaller))
    told = replace(asked, pruning=Pruning(0.2, "index", importance))
    received = sent(pruned, told, units)
    assert torch.equal(received.kept, smaller)
    with pytest.raises(UpdateError, match="without being told"):
        sent(pruned, asked, units)


@pytest.mark.parametrize("importance", [torch.arange(14.0), None])
def test_a_worker_that_pruned_to_one_unit_a_layer_is_refused(
    answer: Update, asked: Task, units: UnitMap, importance: Tensor | None
) -> None:
    told = replace(asked, pruning=Pruning(0.05, "index", importance, min_retention=0.1))
    smallest = torch.zeros_like(asked.kept)
    smallest[[0, 6]] = True
    with pytest.raises(UpdateError, match="worker 3"):
        check_header(replace(answer, kept=smallest), told, units)


def test_a_worker_that_was_told_which_units_to_cut_may_not_keep_them(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    told = replace(asked, pruning=Pruning(0.2, "index", torch.arange(14.0)))
    with pytest.raises(UpdateError, match="kept 12 units, which are not the"):
        check_header(replace(answer, kept=asked.kept), told, units)


def test_figures_of_a_pruning_that_nobody_asked_for_are_refused(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    with pytest.raises(UpdateError, match="worker 3 sent the figures of a pruning that it was not"):
        check_header(replace(answer, cut=Cut(0.1, 1.0, 2.0)), asked, units)


def test_units_that_the_worker_was_not_given_are_refused(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    with pytest.raises(UpdateError, match="worker 3 sent units that were not part"):
        check_header(replace(answer, kept=units.everything()), asked, units)


@pytest.mark.parametrize("change", [{"round": 4}, {"round": 6}, {"worker": 2}])
def test_an_answer_to_another_task_is_refused(
    answer: Update, asked: Task, units: UnitMap, change: dict[str, int]
) -> None:
    with pytest.raises(UpdateError, match="was asked for round 5"):
        check_header(replace(answer, **change), asked, units)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"samples": 0}, {"samples": -5}])
def test_a_worker_without_samples_is_refused(
    answer: Update, asked: Task, units: UnitMap, change: dict[str, Any]
) -> None:
    with pytest.raises(UpdateError, match="samples"):
        check_header(replace(answer, **change), asked, units)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_is_refused(
    answer: Update, asked: Task, units: UnitMap, loss: float
) -> None:
    with pytest.raises(UpdateError, match="lower learning_rate"):
        check_header(replace(answer, loss=loss), asked, units)


@pytest.mark.parametrize("lasso", [float("nan"), float("inf"), -1e-9, 1e30])
def test_a_lambda_that_no_loss_explains_is_refused(
    answer: Update, asked: Task, units: UnitMap, lasso: float
) -> None:
    with pytest.raises(UpdateError, match="worker 3 reported a λ of"):
        check_header(replace(answer, lasso=lasso), asked, units)


@pytest.mark.parametrize("lasso", [None, 0.0, 1e-5, 10.0])
def test_one_that_a_loss_can_explain_or_none_is_taken(
    answer: Update, asked: Task, units: UnitMap, lasso: float | None
) -> None:
    assert sent(replace(answer, lasso=lasso), asked, units).lasso == lasso


@pytest.mark.parametrize(
    "kept",
    [
        torch.ones(3, dtype=torch.bool),
        torch.ones(14),
        torch.ones(2, 14, dtype=torch.bool),
        torch.ones(14, dtype=torch.int64),
    ],
)
def test_kept_units_must_be_flags_of_the_models_units(
    answer: Update, asked: Task, units: UnitMap, kept: Tensor
) -> None:
    with pytest.raises(UpdateError, match="14 booleans"):
        check_header(replace(answer, kept=kept), asked, units)


def test_a_layer_without_units_is_refused(answer: Update, asked: Task, units: UnitMap) -> None:
    kept = asked.kept.clone()
    kept[:6] = False
    with pytest.raises(UpdateError, match="without any unit"):
        check_header(replace(answer, kept=kept), asked, units)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["0.weight", "1.running_mean", "8.bias"])
def test_values_that_are_not_finite_are_refused(
    answer: Update, asked: Task, units: UnitMap, name: str, broken: float
) -> None:
    answer.state[name].view(-1)[-1] = broken
    with pytest.raises(UpdateError, match=f"worker 3 sent '{name}'.*not finite.*learning_rate"):
        check_tensors(answer, units)
    for each in CODECS:
        with pytest.raises(UpdateError, match=f"worker 3 sent '{name}'.*not finite"):
            sent(answer, asked, units, codec(each, {}))


@pytest.mark.parametrize(
    ("name", "value"), [("0.weight", 1e7), ("8.bias", -1e30), ("1.running_mean", 1e16)]
)
def test_numbers_that_no_training_leads_to_are_refused(
    answer: Update, asked: Task, units: UnitMap, name: str, value: float
) -> None:
    answer.state[name].view(-1)[-1] = value
    with pytest.raises(UpdateError, match=f"worker 3 sent '{name}' with numbers of up to"):
        sent(answer, asked, units, codec("plain", {}))


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [("0.weight", 0.1, 1e5), ("0.weight", 1e8, 1e9), ("1.running_var", 1.0, 1e12)],
    ids=["large", "large already", "a variance of raw inputs"],
)
def test_large_numbers_are_not(
    answer: Update, asked: Task, units: UnitMap, name: str, given: float, value: float
) -> None:
    before = {**asked.state, name: torch.full_like(asked.state[name], given)}
    answer.state[name].fill_(value)
    sent(answer, replace(asked, state=before), units, codec("plain", {}))


@pytest.mark.parametrize("name", ["fp16", "int8", "dgc"])
def test_finite_changes_that_add_up_to_infinity_are_refused(
    answer: Update, asked: Task, units: UnitMap, name: str
) -> None:
    before = {**asked.state, "8.weight": torch.full_like(asked.state["8.weight"], 3e38)}
    moved = replace(asked, state=before)
    small = {**answer.state, "8.weight": before["8.weight"] / 2}
    payload, _ = pack(replace(answer, state=small), moved, units, codec(name, {}), Memory())
    for part, tensor in payload.tensors.items():
        if part.startswith(("change:8.weight", "values:8.weight")):
            tensor.abs_()
    assert first_not_finite(payload.tensors) is None
    with pytest.raises(UpdateError, match=r"8\.weight.*not finite"):
        unpack(payload, answer, moved, units, codec(name, {}))


class Careless(Plain):
    """A codec of somebody's own, whose arithmetic fails."""

    def decode(self, payload: Payload, reference: State) -> State:
        return {name: t / 0 if t.is_floating_point() else t for name, t in reference.items()}


def test_whatever_a_codec_makes_of_an_update_is_looked_at(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    with pytest.raises(UpdateError, match=r"worker 3 sent .* not finite"):
        sent(answer, asked, units, Careless(PlainSettings()))


@pytest.mark.parametrize("fixed", [(), ("4",)])
@pytest.mark.parametrize("name", ["1.running_var", "5.running_var"])
def test_negative_variances_are_refused_also_of_units_that_are_never_cut(
    net: nn.Module, fixed: tuple[str, ...], name: str
) -> None:
    # Their root, which the aggregation or the next forward pass takes, would be NaN.
    units = trace(net, torch.zeros(2, 1, 8, 8), fixed)
    task = Task(3, 5, dict(net.state_dict()), units.everything(), Recipe())
    state = {key: tensor.clone() for key, tensor in task.state.items()}
    state[name][0] = -1e-3
    with pytest.raises(UpdateError, match=f"worker 3 sent '{name}' with negative"):
        sent(Update(3, 5, state, task.kept, 40, 1.5), task, units)


@pytest.mark.parametrize(
    ("name", "shape"), [("0.weight", (6, 1, 3, 3)), ("8.weight", (10, 128)), ("8.bias", (1,))]
)
def test_tensors_of_wrong_shape_are_refused(
    answer: Update, asked: Task, units: UnitMap, name: str, shape: tuple[int, ...]
) -> None:
    answer.state[name] = torch.zeros(shape)
    with pytest.raises(UpdateError, match=f"'{name}' of shape"):
        check_tensors(answer, units)
    with pytest.raises(UpdateError, match=name):
        sent(answer, asked, units)


def test_a_missing_and_an_unknown_tensor_are_refused(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    bias = answer.state.pop("8.bias")
    with pytest.raises(UpdateError, match=r"8\.bias"):
        check_tensors(answer, units)
    with pytest.raises(UpdateError, match=r"8\.bias"):
        unpack(Payload(answer.state), answer, asked, units, CODEC)
    answer.state.update({"8.bias": bias, "extra": bias})
    with pytest.raises(UpdateError, match="extra"):
        check_tensors(answer, units)
    with pytest.raises(UpdateError, match="extra"):
        unpack(Payload(answer.state), answer, asked, units, CODEC)


def test_a_tensor_of_another_type_is_refused(answer: Update, asked: Task, units: UnitMap) -> None:
    answer.state["1.num_batches_tracked"] = torch.tensor(0.5)
    with pytest.raises(UpdateError, match="num_batches_tracked"):
        unpack(Payload(answer.state), answer, asked, units, CODEC)


class Reordered(nn.Module):
    """A net whose scores are put into another order by a buffer of indexes."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.scores = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.norm(self.hidden(x)))
        return scores[:, self.order]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("order", [[2, 0, 1000], [2, 0, -1], [0, 1, 2]])
def test_an_index_that_is_not_what_was_sent_out_is_refused(name: str, order: list[int]) -> None:
    model = Reordered()
    units = trace(model, torch.zeros(2, 3))
    task = Task(0, 1, dict(model.state_dict()), units.everything(), Recipe())
    honest = Update(0, 1, dict(task.state), task.kept, 40, 1.5)
    assert sent(honest, task, units, codec(name, {})).state["order"].tolist() == [2, 0, 1]
    lying = replace(honest, state={**task.state, "order": torch.tensor(order)})
    with pytest.raises(UpdateError, match="worker 0 sent 'order' with other whole numbers"):
        sent(lying, task, units, codec(name, {}))


@pytest.mark.parametrize(("samples", "batches"), [(40, 3), (40, 300), (1, 1), (10**9, 10**8)])
def test_batches_may_be_counted_also_several_times_in_a_step(
    answer: Update, asked: Task, units: UnitMap, samples: int, batches: int
) -> None:
    counted = {**answer.state, "1.num_batches_tracked": torch.tensor(batches)}
    received = sent(replace(answer, state=counted, samples=samples), asked, units)
    assert received.state["1.num_batches_tracked"].item() == batches


@pytest.mark.parametrize(
    ("samples", "batches"),
    [(40, -1), (40, 10**6), (40, 2**63 - 1), (2**53 - 1, 2**41), (40, -(2**63))],
)
def test_batches_that_cannot_have_been_seen_are_refused(
    answer: Update, asked: Task, units: UnitMap, samples: int, batches: int
) -> None:
    counted = {**answer.state, "1.num_batches_tracked": torch.tensor(batches)}
    with pytest.raises(UpdateError, match=r"worker 3 sent '1\.num_batches_tracked' with a number"):
        sent(replace(answer, state=counted, samples=samples), asked, units)


def test_the_header_is_checked_before_the_payload_is_read(
    answer: Update, asked: Task, units: UnitMap
) -> None:
    with pytest.raises(UpdateError, match="asked for round"):
        unpack(Payload({}), replace(answer, round=9), asked, units, CODEC)


@pytest.mark.parametrize("name", CODECS)
def test_the_size_of_an_update_is_known_before_it_is_trained(
    name: str, answer: Update, asked: Task, units: UnitMap
) -> None:
    chosen = codec(name, {})
    payload, _ = pack(answer, asked, units, chosen, Memory())
    assert payload_bytes(asked, units, chosen) == payload.nbytes
    whole = {tensor: torch.zeros(shape) for tensor, shape in units.shapes.items()}
    whole = {n: t.long() if n in units.integers else t for n, t in whole.items()}
    lazily = replace(asked, state=CutOnDemand(whole, units, asked.kept))
    assert payload_bytes(lazily, units, chosen) == payload.nbytes
