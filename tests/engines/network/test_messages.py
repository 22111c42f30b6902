"""Tasks and updates survive the journey; what only looks like an update is refused."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import models
from adaptcl.codecs import codec
from adaptcl.codecs.codec import Payload
from adaptcl.data.description import SampleForm
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import Invitation, dismissal
from adaptcl.engines.network.messages import (
    read_task,
    read_update,
    read_used,
    task_frame,
    update_frame,
)
from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.training import Pruning, PruningCost, Recipe, Task, Update, WorkerTest
from adaptcl.training.wire import encode_model
from adaptcl.units import State, UnitMap, size_bytes, trace

PLAIN = codec("plain", {})
MODEL = models.build("small", (1, 8, 8), 10, seed=1)
UNITS: UnitMap = trace(MODEL, torch.zeros(2, 1, 8, 8))
INPUTS = SampleForm((1, 8, 8), "uint8", (0.5,), (0.25,), ("cat", "dog"))
AN_INVITATION = Invitation("run", 0, "print", {"seed": 1}, INPUTS, {"conv": "Conv2d()"})
HUGE = st.sampled_from([10**400, -(10**400), 2**1024, 10**4000])
JSON = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | HUGE
    | st.text()
    | st.lists(st.integers())
)


def a_task(pruning: Pruning | None = None) -> Task:
    whole = UNITS.everything()
    return Task(
        1,
        7,
        MODEL.state_dict(),
        whole,
        Recipe(),
        pruning,
        lasso_lambda=0.0125,
        is_sparse=False,
        carries_fractions=True,
        schedule_round=2,
    )


def framed(task: Task, used: int = 0) -> Frame:
    return task_frame(task, encode_model(task, UNITS, PLAIN), used)


def an_update() -> Update:
    state = MODEL.state_dict()
    test = WorkerTest(11, 0.5, {"accuracy": 0.75, "r2": None})
    cost = PruningCost(0.1, 1.0, 2.0)
    return Update(
        1, 7, state, UNITS.everything(), 99, 0.25, cost, torch.rand(UNITS.count), 0.0125, test, 2.5
    )


@pytest.mark.parametrize(
    "pruning",
    [None, Pruning(0.25, "l1"), Pruning(0.5, "cig-bnscalor", torch.rand(UNITS.count), 0.3, 16)],
)
def test_a_task_arrives_as_it_was_given(pruning: Pruning | None) -> None:
    sent = a_task(pruning)
    got = read_task(Frame.from_bytes(framed(sent).to_bytes()), UNITS, PLAIN)
    assert (got.worker, got.round, got.recipe) == (1, 7, sent.recipe)
    assert got.lasso_lambda == sent.lasso_lambda
    assert (got.is_sparse, got.carries_fractions, got.schedule_round) == (False, True, 2)
    assert torch.equal(got.kept, sent.kept)
    assert all(torch.equal(got.state[name], tensor) for name, tensor in sent.state.items())
    if pruning is None:
        assert got.pruning is None
    else:
        assert got.pruning is not None
        assert (got.pruning.rate, got.pruning.order) == (pruning.rate, pruning.order)
        assert (got.pruning.importance is None) == (pruning.importance is None)
        assert got.pruning.min_retention == pruning.min_retention
        assert got.pruning.width_multiple == pruning.width_multiple


@pytest.mark.parametrize("used", [0, 6])
def test_a_task_says_which_update_was_used_last(used: int) -> None:
    frame = Frame.from_bytes(framed(a_task(), used).to_bytes())
    assert read_used(frame, read_task(frame, UNITS, PLAIN)) == used


@pytest.mark.parametrize("used", [7, -1, 1.5, True, "6", [1], None])
def test_an_update_that_cannot_have_been_used_is_refused(used: object) -> None:
    frame = framed(a_task())
    frame.header["used"] = used
    with pytest.raises(UpdateError, match="says that used is"):
        read_used(frame, a_task())


@pytest.mark.parametrize("multiple", [0, -16, 1.5, True, "16", None, float("inf")])
def test_a_multiple_that_is_none_is_refused(multiple: object) -> None:
    frame = framed(a_task(Pruning(0.25, "l1")))
    frame.header["pruning"]["width_multiple"] = multiple
    with pytest.raises(UpdateError, match="width_multiple"):
        read_task(frame, UNITS, PLAIN)


@pytest.mark.parametrize("name", ["rate", "min_retention"])
@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, True, "0.5", None])
def test_a_pruning_by_what_is_no_share_is_refused(name: str, share: object) -> None:
    frame = framed(a_task(Pruning(0.25, "l1")))
    frame.header["pruning"][name] = share
    with pytest.raises(UpdateError, match=f"says that {name} is"):
        read_task(frame, UNITS, PLAIN)


def test_an_update_arrives_as_it_was_sent() -> None:
    sent = an_update()
    frame = update_frame(sent, Payload(sent.state))
    got, payload = read_update(Frame.from_bytes(frame.to_bytes()), UNITS)
    assert torch.equal(got.kept, sent.kept)
    assert got.importance is not None
    assert sent.importance is not None
    assert torch.equal(got.importance, sent.importance)
    assert replace(got, state=sent.state, kept=sent.kept, importance=sent.importance) == sent
    assert payload.tensors.keys() == sent.state.keys()


@pytest.mark.parametrize("name", ["is_sparse", "carries_fractions", "only_tests"])
@pytest.mark.parametrize("value", [1, "true", None])
def test_what_is_neither_true_nor_false_is_refused(name: str, value: object) -> None:
    frame = framed(a_task())
    frame.header[name] = value
    with pytest.raises(UpdateError, match=f"says that {name} is"):
        read_task(frame, UNITS, PLAIN)


@pytest.mark.parametrize("value", [pytest.param(10**400, id="huge"), True, "1", -1.0, math.nan])
def test_a_lambda_that_cannot_be_one_is_refused(value: object) -> None:
    task, update = framed(a_task()), update_frame(an_update(), Payload({}))
    task.header["lasso"] = update.header["lasso"] = value
    with pytest.raises(UpdateError, match="lasso is"):
        read_task(task, UNITS, PLAIN)
    with pytest.raises(UpdateError, match="lasso is"):
        read_update(update, UNITS)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("samples", -1, "samples is -1"),
        ("loss", math.inf, "loss is inf"),
        ("loss", 1e31, "loss is 1e"),
        ("metrics", [], "test is"),
        ("metrics", {"accuracy": math.nan}, "accuracy is nan"),
        ("metrics", {"accuracy": True}, "accuracy is True"),
    ],
)
def test_a_test_that_cannot_be_averaged_is_refused(
    place: str, value: object, sentence: str
) -> None:
    frame = update_frame(an_update(), Payload({}))
    frame.header["test"][place] = value
    with pytest.raises(UpdateError, match=sentence):
        read_update(frame, UNITS)


@given(
    st.sampled_from(
        ["worker", "round", "samples", "loss", "cut", "lasso", "test", "seconds", "error"]
    ),
    JSON,
)
def test_headers_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    sent = an_update()
    frame = update_frame(sent, Payload(sent.state))
    with contextlib.suppress(UpdateError):
        read_update(Frame({**frame.header, name: value}, frame.tensors), UNITS)


@given(st.sampled_from(["importance_lost", "loss_before", "loss_after"]), JSON)
def test_prunings_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    frame = update_frame(an_update(), Payload({}))
    frame.header["cut"][name] = value
    with contextlib.suppress(UpdateError):
        read_update(frame, UNITS)


@pytest.mark.parametrize("value", [pytest.param(10**400, id="huge"), True, "1", None])
@pytest.mark.parametrize("name", ["worker", "round", "samples", "loss", "seconds"])
def test_what_is_no_number_is_refused_by_its_name(name: str, value: object) -> None:
    frame = update_frame(an_update(), Payload({}))
    frame.header[name] = value
    with pytest.raises(UpdateError, match=f"says that {name} is {value!r:.30}"):
        read_update(Frame.from_bytes(frame.to_bytes()), UNITS)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_loss_that_is_not_finite_is_left_to_who_can_say_what_it_means(value: float) -> None:
    frame = update_frame(an_update(), Payload({}))
    frame.header.update(loss=value, cut={"importance_lost": value})
    got, _ = read_update(Frame.from_bytes(frame.to_bytes()), UNITS)
    assert str(got.loss) == str(value)
    frame.header.update(loss=1.0, seconds=value, cut=None)
    with pytest.raises(UpdateError, match="seconds is"):
        read_update(Frame.from_bytes(frame.to_bytes()), UNITS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("importance_lost", -0.1), ("importance_lost", 1.1), ("importance_lost", 1e308)),
        *(("loss_before", -1e308), ("loss_after", 1e308), ("loss_after", float("inf"))),
    ],
)
def test_figures_that_no_pruning_has_are_refused_by_their_name(name: str, value: float) -> None:
    frame = update_frame(an_update(), Payload({}))
    frame.header["cut"][name] = value
    with pytest.raises(UpdateError, match=f"says that {name} is"):
        read_update(frame, UNITS)


@given(st.sampled_from(["worker", "round", "lasso", "pruning", "recipe", "rate"]), JSON | HUGE)
def test_tasks_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    frame = framed(a_task(Pruning(0.25, "l1")))
    (frame.header["pruning"] if name == "rate" else frame.header)[name] = value
    with contextlib.suppress(AdaptCLError):
        read_task(frame, UNITS, PLAIN)


def test_an_invitation_arrives_as_it_was_given() -> None:
    assert Invitation.read(Frame.from_bytes(AN_INVITATION.frame().to_bytes())) == AN_INVITATION


def test_an_invitation_of_a_server_that_says_nothing_of_its_data_is_refused() -> None:
    frame = AN_INVITATION.frame()
    del frame.header["inputs"]
    with pytest.raises(AdaptCLError, match="invitation cannot be understood"):
        Invitation.read(frame)


@given(st.sampled_from(["inputs", "outline", "run", "fingerprint", "settings"]), JSON)
def test_invitations_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    frame = AN_INVITATION.frame()
    with contextlib.suppress(AdaptCLError):
        Invitation.read(Frame({**frame.header, name: value}, {}))


@pytest.mark.parametrize("worker", [True, -1, pytest.param(10**400, id="huge"), 1.0, None])
def test_an_invitation_for_nobody_is_refused(worker: object) -> None:
    frame = AN_INVITATION.frame()
    assert Invitation.read(Frame.from_bytes(frame.to_bytes())).worker == 0
    frame.header["worker"] = worker
    with pytest.raises(AdaptCLError, match="invitation cannot be understood"):
        Invitation.read(frame)


def test_a_worker_that_is_dismissed_learns_why_and_its_terminal_is_safe() -> None:
    frame = Frame.from_bytes(dismissal("it has \x1b[2Jother data.").to_bytes())
    with pytest.raises(AdaptCLError, match=r"dismissed this worker: it has \[2Jother data\."):
        Invitation.read(frame)


def test_what_nobody_asked_for_is_refused() -> None:
    sent = an_update()
    frame = update_frame(sent, Payload(sent.state))
    with pytest.raises(UpdateError, match="no place in it"):
        read_update(Frame(frame.header, {**frame.tensors, "more": torch.zeros(1)}), UNITS)
    with pytest.raises(UpdateError, match="lacks its kept units"):
        read_update(Frame(frame.header, {}), UNITS)


def test_a_frame_costs_little_more_than_its_sub_model() -> None:
    model = nn.Sequential(nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 10))
    units = trace(model, torch.zeros(2, 1000))
    task = Task(0, 1, model.state_dict(), units.everything(), Recipe())
    frame = task_frame(task, encode_model(task, units, PLAIN), 0)
    assert len(frame.to_bytes()) < 1.001 * size_bytes(units, units.everything())


@pytest.mark.parametrize("name", ["plain", "fp16", "int8"])
def test_a_model_that_cannot_be_the_servers_is_refused(name: str) -> None:
    chosen, task = codec(name, {}), a_task()
    tensors = encode_model(task, UNITS, chosen).tensors
    weights = next(entry for entry in tensors if entry.endswith("weight") and "scale" not in entry)

    def refused(garbage: State) -> str:
        with pytest.raises(UpdateError, match=r"^The server's model .*\.$") as refusal:
            read_task(task_frame(task, Payload(garbage), 0), UNITS, chosen)
        return str(refusal.value)

    assert f"lacks {weights!r}" in refused({k: v for k, v in tensors.items() if k != weights})
    assert "in the shape [3]" in refused(
        {**tensors, weights: torch.zeros(3, dtype=tensors[weights].dtype)}
    )
    assert "as torch.bool" in refused({**tensors, weights: tensors[weights].bool()})
    assert "no place in it: 'more'" in refused({**tensors, "more": torch.zeros(1)})
    broken = next(entry for entry, t in tensors.items() if t.dtype == torch.float32)
    assert "not finite" in refused({**tensors, broken: tensors[broken] * math.nan})
