"""Whatever a worker sends is used as it was sent, or refused in one sentence."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.codecs import CODECS, Codec, Codecs, codec
from adaptcl.codecs.codec import Memory, NoSettings, Payload, Plain
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.gate import (
    check_header,
    check_shapes,
    checked,
    read_answer,
)
from adaptcl.engines.network.messages import update_frame
from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.pruning import prune
from adaptcl.training import Pruning, PruningCost, Recipe, Task, Update, WorkerTest
from adaptcl.training.divergence import first_not_finite
from adaptcl.training.wire import encode_update
from adaptcl.units import Kept, State, UnitMap, cut, recut, trace

PLAIN = Plain(NoSettings())
RIGHT: dict[str, float | None] = {"accuracy": 0.9}


def small_net() -> nn.Module:
    """Six and eight filters with batch norm: fourteen units."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


NET = small_net()
UNITS = trace(NET, torch.zeros(2, 1, 8, 8))


@pytest.fixture(scope="session")
def asked() -> Task:
    """A task for a worker whose sub-model lacks units 1 and 9."""
    kept = UNITS.everything()
    kept[[1, 9]] = False
    return Task(3, 5, cut(NET.state_dict(), UNITS, kept), kept, Recipe(strength=0.3))


@pytest.fixture
def answer(asked: Task) -> Update:
    """What an honest worker sends."""
    return Update(3, 5, {name: t + 1 for name, t in asked.state.items()}, asked.kept, 40, 1.5)


def sent(update: Update, task: Task, units: UnitMap = UNITS, by: Codec = PLAIN) -> Update:
    payload, _ = encode_update(update, task, units, by, Memory())
    return checked(payload, update, task, units, Codecs(by, PLAIN))


def as_frame(update: Update) -> Frame:
    return update_frame(replace(update, seconds=2.5), Payload(update.state))


# What arrives.


@pytest.mark.parametrize("lasso", [None, 0.0, 10.0])
def test_an_honest_answer_arrives_as_it_was_sent(
    answer: Update, asked: Task, lasso: float | None
) -> None:
    content = as_frame(replace(answer, lasso_lambda=lasso)).to_bytes()
    found = read_answer(content, asked, UNITS, Codecs(PLAIN, PLAIN))
    assert found.state.keys() == answer.state.keys()
    assert all(torch.equal(found.state[name], t) for name, t in answer.state.items())
    assert torch.equal(found.kept, asked.kept)
    assert found.seconds == 2.5
    assert (found.worker, found.round, found.samples, found.loss) == (3, 5, 40, 1.5)
    assert (found.pruning_cost, found.lasso_lambda) == (None, lasso)


@pytest.mark.parametrize("own", [True, False])
def test_only_a_worker_that_was_told_to_may_have_pruned(
    answer: Update, asked: Task, own: bool
) -> None:
    order = torch.arange(14.0)
    smaller = prune(UNITS, asked.kept, order, 0.2)
    state = recut(answer.state, UNITS, asked.kept, smaller)
    less = replace(answer, kept=smaller, state=state, importance=order if own else None)
    told = replace(asked, pruning=Pruning(0.2, "index", None if own else order))
    assert torch.equal(sent(less, told).kept, smaller)
    with pytest.raises(UpdateError, match="without being told"):
        sent(less, asked)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [("0.weight", 0.1, 1e5), ("0.weight", 1e8, 1e9), ("1.running_var", 1.0, 1e12)],
    ids=["large", "large already", "a variance of raw inputs"],
)
def test_large_numbers_are_accepted(
    answer: Update, asked: Task, name: str, given: float, value: float
) -> None:
    before = {**asked.state, name: torch.full_like(asked.state[name], given)}
    answer.state[name].fill_(value)
    sent(answer, replace(asked, state=before))


@pytest.mark.parametrize(("samples", "batches"), [(40, 3), (40, 300), (1, 1), (10**9, 10**8)])
def test_batches_may_be_counted_several_times_in_a_step(
    answer: Update, asked: Task, samples: int, batches: int
) -> None:
    counted = {**answer.state, "1.num_batches_tracked": torch.tensor(batches)}
    received = sent(replace(answer, state=counted, samples=samples), asked)
    assert received.state["1.num_batches_tracked"].item() == batches


# What is refused before the payload is read.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"round": 4}, "was asked for round 5"),
        ({"worker": 2}, "was asked for round 5"),
        ({"samples": 0}, "worker 3 reported 0 samples"),
        ({"samples": -5}, "worker 3 reported -5 samples"),
        ({"lasso_lambda": float("nan")}, "worker 3 reported a λ of"),
        ({"lasso_lambda": float("inf")}, "worker 3 reported a λ of"),
        ({"lasso_lambda": -1e-9}, "worker 3 reported a λ of"),
        ({"lasso_lambda": 1e30}, "worker 3 reported a λ of"),
        (
            {"pruning_cost": PruningCost(0.1, 1.0, 2.0)},
            "worker 3 sent the figures of a pruning that it was not",
        ),
        (
            {"importance": torch.arange(14.0)},
            "worker 3 sent the figures of a pruning that it was not",
        ),
        ({"test": WorkerTest(0, 0.1, RIGHT)}, "worker 3 reported a test on 0 samples"),
        ({"test": WorkerTest(2**50, 0.1, RIGHT)}, "worker 3 reported a test on 1125899906842624"),
        ({"test": WorkerTest(9, 0.1, {"accuracy": 1.1})}, "worker 3 reported 1.1 as its accuracy"),
        ({"test": WorkerTest(9, 0.1, {})}, "reported the metrics none, but here they are accuracy"),
        ({"test": WorkerTest(9, 0.1, RIGHT | {"f1": 1})}, "reported the metrics accuracy, f1, but"),
        ({"kept": UNITS.everything()}, "worker 3 sent units that were not part"),
        ({"kept": torch.ones(3, dtype=torch.bool)}, "14 booleans"),
        ({"kept": torch.ones(14)}, "14 booleans"),
        ({"kept": torch.ones(2, 14, dtype=torch.bool)}, "14 booleans"),
        ({"kept": torch.arange(14) >= 6}, "without any unit"),
    ],
)
def test_a_header_that_does_not_answer_the_task_is_refused(
    answer: Update, asked: Task, change: dict[str, object], sentence: str
) -> None:
    changed = replace(answer, **change)  # type: ignore[arg-type]
    with pytest.raises(UpdateError, match=sentence):
        checked(Payload({}), changed, asked, UNITS, Codecs(PLAIN, PLAIN), RIGHT)


# What is refused after it was decoded.


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_training_that_diverged_is_refused(answer: Update, asked: Task, broken: float) -> None:
    with pytest.raises(UpdateError, match=r"worker 3 diverged in round 5 .*lower learning_rate"):
        sent(replace(answer, loss=broken), asked)
    for name in ("0.weight", "1.running_mean", "8.bias"):
        state = {key: tensor.clone() for key, tensor in answer.state.items()}
        state[name].view(-1)[-1] = broken
        for each in CODECS:
            with pytest.raises(UpdateError, match=f"worker 3 diverged .*'{name}' is not finite"):
                sent(replace(answer, state=state), asked, by=codec(each, {}))


@pytest.mark.parametrize(
    ("name", "value"), [("0.weight", 1e7), ("8.bias", -1e30), ("1.running_mean", 1e16)]
)
def test_numbers_that_no_training_leads_to_are_refused(
    answer: Update, asked: Task, name: str, value: float
) -> None:
    answer.state[name].view(-1)[-1] = value
    with pytest.raises(UpdateError, match=f"worker 3 diverged .*'{name}' holds numbers of up to"):
        sent(answer, asked)


@pytest.mark.parametrize("name", ["fp16", "int8", "dgc"])
def test_finite_changes_that_add_up_to_infinity_are_refused(
    answer: Update, asked: Task, name: str
) -> None:
    before = {**asked.state, "8.weight": torch.full_like(asked.state["8.weight"], 3e38)}
    moved = replace(asked, state=before)
    small = {**answer.state, "8.weight": before["8.weight"] / 2}
    payload, _ = encode_update(
        replace(answer, state=small), moved, UNITS, codec(name, {}), Memory()
    )
    for entry, tensor in payload.tensors.items():
        if entry.startswith(("change:8.weight", "values:8.weight")):
            tensor.abs_()
    assert first_not_finite(payload.tensors) is None
    with pytest.raises(UpdateError, match=r"'8\.weight' is not finite"):
        checked(payload, answer, moved, UNITS, Codecs(codec(name, {}), PLAIN))


@pytest.mark.parametrize("fixed", [(), ("4",)])
def test_negative_variances_are_refused_also_of_units_that_are_never_cut(
    fixed: tuple[str, ...],
) -> None:
    # The aggregation or the next forward pass takes their root, which would be NaN.
    units = trace(NET, torch.zeros(2, 1, 8, 8), fixed)
    task = Task(3, 5, dict(NET.state_dict()), units.everything(), Recipe())
    for name in ("1.running_var", "5.running_var"):
        state = {key: tensor.clone() for key, tensor in task.state.items()}
        state[name][0] = -1e-3
        with pytest.raises(UpdateError, match=f"worker 3 sent '{name}' with negative"):
            sent(Update(3, 5, state, task.kept, 40, 1.5), task, units)


@pytest.mark.parametrize(
    ("name", "shape"), [("0.weight", (6, 1, 3, 3)), ("8.weight", (10, 128)), ("8.bias", (1,))]
)
def test_tensors_of_wrong_shape_are_refused(
    answer: Update, asked: Task, name: str, shape: tuple[int, ...]
) -> None:
    answer.state[name] = torch.zeros(shape)
    with pytest.raises(UpdateError, match=f"'{name}' of shape"):
        check_shapes(answer, UNITS)
    with pytest.raises(UpdateError, match=name):
        sent(answer, asked)


def test_a_missing_an_unknown_and_a_retyped_tensor_are_refused(answer: Update, asked: Task) -> None:
    bias = answer.state["8.bias"]
    missing = {name: tensor for name, tensor in answer.state.items() if name != "8.bias"}
    retyped = {**answer.state, "1.num_batches_tracked": torch.tensor(0.5)}
    for name, state in {
        r"8\.bias": missing,
        "extra": {**answer.state, "extra": bias},
        "num_batches_tracked": retyped,
    }.items():
        with pytest.raises(UpdateError, match=name):
            checked(Payload(state), answer, asked, UNITS, Codecs(PLAIN, PLAIN))
        if state is not retyped:
            with pytest.raises(UpdateError, match=name):
                check_shapes(replace(answer, state=state), UNITS)


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
def test_no_worker_can_change_an_index(name: str) -> None:
    model = Reordered()
    units = trace(model, torch.zeros(2, 3))
    task = Task(0, 1, dict(model.state_dict()), units.everything(), Recipe())
    honest = Update(0, 1, dict(task.state), task.kept, 40, 1.5)
    assert sent(honest, task, units, codec(name, {})).state["order"].tolist() == [2, 0, 1]
    other = torch.tensor([2, 0, 1000])
    lying = replace(honest, state={**task.state, "order": other})
    assert sent(lying, task, units, codec(name, {})).state["order"].tolist() == [2, 0, 1]
    payload, _ = encode_update(honest, task, units, PLAIN, Memory())
    forged = Payload({**payload.tensors, "order": other})
    with pytest.raises(UpdateError, match="no place in it: 'order'"):
        checked(forged, honest, task, units, Codecs(PLAIN, PLAIN))


@pytest.mark.parametrize(
    ("samples", "batches"),
    [(40, -1), (40, 10**6), (40, 2**63 - 1), (2**53 - 1, 2**41), (40, -(2**63))],
)
def test_batches_that_cannot_have_been_seen_are_refused(
    answer: Update, asked: Task, samples: int, batches: int
) -> None:
    counted = {**answer.state, "1.num_batches_tracked": torch.tensor(batches)}
    with pytest.raises(UpdateError, match=r"worker 3 sent '1\.num_batches_tracked' with a number"):
        sent(replace(answer, state=counted, samples=samples), asked)


def test_a_name_that_a_worker_makes_up_neither_steers_a_terminal_nor_fills_it(
    answer: Update, asked: Task
) -> None:
    frame = as_frame(answer)
    names = {f"payload:\x1b[2J{n}" + 10_000 * "x": torch.zeros(1) for n in range(100)}
    content = Frame(frame.header, {**frame.tensors, **names}).to_bytes()
    with pytest.raises(UpdateError) as refused:
        read_answer(content, asked, UNITS, Codecs(PLAIN, PLAIN))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


# Custom codecs.


class Careless(Plain):
    """Its arithmetic fails."""

    def decode(self, payload: Payload, reference: State) -> State:
        return {name: t / 0 if t.is_floating_point() else t for name, t in reference.items()}


class Zip(Plain):
    """It does not expect what others send."""

    def decode(self, payload: Payload, reference: State) -> State:
        zlib.decompress(b"\x1b[2J no zip")
        return reference


class Forgetful(Plain):
    def decode(self, payload: Payload, reference: State) -> State:
        return dict.fromkeys(reference, "no tensor")  # type: ignore[arg-type]


class Strict(Plain):
    def decode(self, payload: Payload, reference: State) -> State:
        raise AdaptCLError("not \x1b[2J mine" + 1000 * "!")


def test_an_error_in_a_custom_codec_is_a_refusal_that_names_it(answer: Update, asked: Task) -> None:
    with pytest.raises(UpdateError) as refused:
        read_answer(as_frame(answer).to_bytes(), asked, UNITS, Codecs(Zip(NoSettings()), PLAIN))
    assert str(refused.value) == (
        "it cannot be decoded (error: Error -3 while decompressing data: incorrect header check). "
        f"This happened in {__name__}:Zip, in Zip.decode, which is not AdaptCL's code."
    )


@pytest.mark.parametrize("custom", [Careless, Forgetful, Strict])
def test_whatever_a_custom_codec_does_is_a_refusal_fit_to_be_shown(
    answer: Update, asked: Task, custom: Callable[[NoSettings], Plain]
) -> None:
    with pytest.raises(UpdateError, match=r"it cannot be decoded|is not finite") as refused:
        read_answer(as_frame(answer).to_bytes(), asked, UNITS, Codecs(custom(NoSettings()), PLAIN))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


# How far a worker may prune.


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 48, 3), nn.ReLU(),
        nn.Conv2d(48, 32, 3), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(32 * 4, 10),
    )  # fmt: skip


DEEP = trace(deep(), torch.zeros(2, 1, 8, 8))
ORDER = torch.arange(float(DEEP.count))


def pruned(own: bool, kept: Kept, importance: Tensor | None = ORDER) -> tuple[Task, Update]:
    """A task to prune half of a model in this order, whoever computed it, and its answer."""
    pruning = Pruning(0.5, "any", None if own else ORDER, 0.1, 16)
    task = Task(1, 2, {}, DEEP.everything(), Recipe(), pruning)
    return task, Update(1, 2, {}, kept, 40, 1.0, importance=importance if own else None)


LEFT = prune(DEEP, DEEP.everything(), ORDER, 0.5, 0.1, 16)


@pytest.mark.parametrize("own", [True, False])
def test_what_the_order_leaves_is_accepted_and_one_other_unit_is_refused(own: bool) -> None:
    task, update = pruned(own, LEFT)
    check_header(update, task, DEEP)
    layer = DEEP.layers[0].units
    swapped = LEFT.clone()
    swapped[layer.start], swapped[layer.stop - 1] = True, False
    assert int(swapped.sum()) == int(LEFT.sum())
    for other in (swapped, DEEP.everything()):
        with pytest.raises(UpdateError, match=r"worker 1 kept \d+ units, which are not the"):
            check_header(replace(update, kept=other), task, DEEP)


@pytest.mark.parametrize(
    ("importance", "sentence"),
    [
        (None, "did not send the importance"),
        (ORDER[:-1], "did not send the importance"),
        (ORDER[None], "did not send the importance"),
        (ORDER.log(), "importance that is not finite"),
        (ORDER * math.nan, "importance that is not finite"),
    ],
)
def test_an_order_of_a_worker_that_is_none_is_refused(
    importance: Tensor | None, sentence: str
) -> None:
    task, update = pruned(True, LEFT, importance)
    with pytest.raises(UpdateError, match=f"worker 1 .*{sentence}"):
        check_header(update, task, DEEP)


def test_a_model_of_which_nothing_can_be_cut_is_left_as_it_is() -> None:
    units = trace(nn.Linear(2, 2), torch.zeros(1, 2))
    task = Task(1, 2, {}, units.everything(), Recipe(), Pruning(0.3, "l1"))
    update = Update(1, 2, {}, units.everything(), 40, 1.0, importance=torch.zeros(0))
    check_header(update, task, units)
