"""AdaptCL as a strategy of somebody's Flower app gives what a simulation gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="adaptcl.flower needs flwr: pip install 'adaptcl[network]'")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.supercore.task_identity import TaskIdentity

from adaptcl import models
from adaptcl.codecs import codec
from adaptcl.codecs.codec import Memory
from adaptcl.codecs.dgc import DGC
from adaptcl.config.config import configure
from adaptcl.engines import flower_grid
from adaptcl.engines.flower_grid import OpenMessage
from adaptcl.engines.network.frames import Frame, from_record, to_record
from adaptcl.engines.network.messages import read_task, update_frame
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.flower import AdaptCL, train
from adaptcl.runs.session import run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import load_workload
from adaptcl.strategies import STRATEGIES
from adaptcl.training import Update
from adaptcl.training.wire import encode_update

SETTINGS: dict[str, Any] = {
    "epochs": 1.0,
    "batch_size": 32,
    "learning_rate": 0.05,
    "strength": 0.5,
    "pruning_interval": 2,
    "pruned_rates": ((0.3, 0.2, 0.0),),
}
CONFIG = configure(
    {"model": "small", "data": "digits", "workers": 3, "rounds": 3, "seed": 3}
    | {"samples": 300, "codec": "dgc", "codec_down": "int8"}
    | SETTINGS
)
WORKLOAD = load_workload(CONFIG.job)
OWN_ORDER = """
import torch

class Mine:
    summary = "mine"
    def importance(self, view):
        return torch.arange(view.units.count).float()
"""


class LocalGrid:
    """Nodes that answer in this process, each with a context that lasts, as Flower's do."""

    def __init__(self) -> None:
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}, 1) for node in (11, 12, 13)}
        self._answers: dict[str, Message] = {}
        self.silent: set[tuple[int, str]] = set()
        """Nodes that give an error in a round."""
        self.unheard: set[tuple[int, str]] = set()
        """Nodes whose answer of a round gets lost on the way."""

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"{len(self._answers)}"
            message.metadata.__dict__["_message_id"] = name
            self._answers[name] = self._answer(message)
            names.append(name)
        return names

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        return [self._answers[name] for name in list(names)]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if (node, message.metadata.group_id) in self.silent:
            return Message(Error(0, "no power"), reply_to=message)
        answer = train(
            message,
            self._contexts[node],
            model=models.build("small", (1, 8, 8), 10, 3),
            data=WORKLOAD.worker_samples[node - 11],
            codec="dgc",
            codec_down="int8",
            seed=3,
        )
        if (node, message.metadata.group_id) in self.unheard:
            return Message(Error(0, "no line"), reply_to=message)
        return answer


def strategy(**others: Any) -> AdaptCL:
    chosen = {"codec": "dgc", "codec_down": "int8", "seed": 3, **SETTINGS, **others}
    model = models.build("small", (1, 8, 8), 10, 3)
    return AdaptCL(model, WORKLOAD.example(), workers=3, **chosen)


def workers(result: Any) -> list[int]:
    """How many took part in each round."""
    return [each["workers"] for each in result.train_metrics_clientapp.values()]


def start(grid: Any, rounds: int = 3, chosen: AdaptCL | None = None, **options: Any) -> Any:
    arrays = ArrayRecord(models.build("small", (1, 8, 8), 10, 3).state_dict())
    return (chosen or strategy()).start(grid, arrays, num_rounds=rounds, **options)


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets only a running app make messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.slow
def test_the_model_is_that_of_a_simulation() -> None:
    result = start(LocalGrid())
    simulated = run_session(simulated_session(CONFIG, WORKLOAD)).model.state_dict()
    for name, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, simulated[name], rtol=0, atol=1e-6)
    assert result.train_metrics_clientapp[3]["smallest-retention"] == pytest.approx(0.7, abs=0.02)


@pytest.mark.slow
def test_a_node_that_fails_is_left_out_of_its_round_and_then_taken_back() -> None:
    grid = LocalGrid()
    grid.silent = {(12, "2")}
    result = start(grid)
    assert workers(result) == [3, 2, 3]


@pytest.mark.slow
def test_an_answer_that_got_lost_is_as_if_the_codec_had_not_sent_it() -> None:
    lost, idle = LocalGrid(), LocalGrid()
    lost.unheard = idle.silent = {(12, "2"), (13, "3")}
    one, other = (start(grid).arrays.to_torch_state_dict() for grid in (lost, idle))
    for name, tensor in one.items():  # updates are added in the order of their arrival
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_node_that_gives_itself_more_weight_than_it_began_with_is_left_out() -> None:
    class Growing(LocalGrid):
        def _answer(self, message: Message) -> Message:
            answer = super()._answer(message)
            if (message.metadata.dst_node_id, message.metadata.group_id) != (13, "2"):
                return answer
            frame = Frame.from_bytes(from_record(answer.content))
            larger = Frame({**frame.header, "samples": 10**15}, frame.tensors)
            return Message(to_record(larger.to_bytes()), reply_to=message)

    assert workers(start(Growing())) == [3, 2, 3]


def finetuned() -> nn.Module:
    model = models.build("small", (1, 8, 8), 10, 3)
    next(model.parameters()).requires_grad_(False)
    return model


@pytest.mark.slow
def test_frozen_tensors_travel_once_and_again_to_a_node_that_has_lost_its_context() -> None:
    class Finetuning(LocalGrid):
        brought: ClassVar[list[tuple[int, str]]] = []

        def _answer(self, message: Message) -> Message:
            node, round_ = message.metadata.dst_node_id, message.metadata.group_id
            names = Frame.from_bytes(from_record(message.content)).tensors
            if any(name.startswith("frozen:") for name in names):
                self.brought.append((node, round_))
            elif (node, round_) == (12, "3"):
                self._contexts[node] = Context(1, node, {}, RecordDict(), {}, 1)
            samples = WORKLOAD.worker_samples[node - 11]
            return train(message, self._contexts[node], model=finetuned(), data=samples)

    chosen = AdaptCL(finetuned(), WORKLOAD.example(), workers=3, strategy="fedavg", epochs=0.1)
    assert workers(start(Finetuning(), chosen=chosen)) == [3, 3, 3]
    assert sorted(Finetuning.brought) == [(11, "1"), (12, "1"), (12, "3"), (13, "1")]


class HoldingGrid(LocalGrid):
    """Nodes that train nothing and answer when a test lets them."""

    def __init__(self, *, blocking: bool = False, push_s: float = 0.0) -> None:
        super().__init__()
        self._blocking = blocking
        """Whether a pull waits for an answer, as Flower's does for one that is being sent."""
        self._push_s = push_s
        self._keys: dict[str, tuple[int, str]] = {}
        self.held: dict[tuple[int, str], threading.Event] = {}
        """Answers that are not there yet, by node and round."""
        self.on_push: Callable[[], None] = lambda: None
        """Called once, when the first message is pushed."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.on_push, on_push = lambda: None, self.on_push
        on_push()
        time.sleep(self._push_s)
        all_messages = list(messages)
        names = list(super().push_messages(all_messages))
        for name, message in zip(names, all_messages, strict=True):
            self._keys[name] = message.metadata.dst_node_id, message.metadata.group_id
        return names

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        (name,) = names
        held = self.held.get(self._keys[name])
        if held is not None and not held.wait(60.0 if self._blocking else 0.0):
            return []
        return super().pull_messages([name])

    def _answer(self, message: Message) -> Message:
        plain = codec("plain", {})
        task = read_task(Frame.from_bytes(from_record(message.content)), WORKLOAD.units, plain)
        update = Update(task.worker, task.round, dict(task.state), task.kept, 5, 1.0)
        payload, _ = encode_update(update, task, WORKLOAD.units, plain, Memory())
        return Message(to_record(update_frame(update, payload).to_bytes()), reply_to=message)


def fedavg(**others: Any) -> AdaptCL:
    model = models.build("small", (1, 8, 8), 10, 3)
    return AdaptCL(model, WORKLOAD.example(), workers=3, strategy="fedavg", **others)


@pytest.mark.slow
def test_a_node_with_a_slow_link_is_slow_and_makes_no_other_seem_so() -> None:
    grid = HoldingGrid(blocking=True)
    grid.held[11, "1"] = threading.Event()
    grid.on_push = threading.Timer(1.0, grid.held[11, "1"].set).start
    metrics = start(grid, 1, fedavg()).train_metrics_clientapp[1]
    assert metrics["slowest-update-time"] > 0.5
    assert metrics["heterogeneity"] > 0.4


@pytest.mark.slow
def test_the_time_in_which_others_are_asked_is_no_nodes() -> None:
    metrics = start(HoldingGrid(push_s=0.4), 1, fedavg()).train_metrics_clientapp[1]
    assert metrics["slowest-update-time"] < 0.4


def test_a_node_that_begins_before_all_is_pushed_has_worked_as_long_as_it_says_and_can_have() -> (
    None
):
    task: Any = None
    message = OpenMessage(task, 1, True, sent=14.0, began=10.0)
    assert [message.elapsed(15.0, worked) for worked in (0.5, 3.0, 1e9)] == [1.0, 3.0, 5.0]


@pytest.mark.slow
def test_a_round_goes_on_without_a_node_that_is_too_late_and_the_next_asks_it_again() -> None:
    grid = HoldingGrid(blocking=True)
    grid.held[13, "1"] = threading.Event()
    result = start(grid, 3, fedavg(), timeout=1.0)
    grid.held[13, "1"].set()
    assert workers(result) == [2, 3, 3]


def test_a_deadline_closes_a_round_without_a_slow_node_that_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = HoldingGrid()
    grid.held[13, "2"] = threading.Event()
    assert workers(start(grid, 2, fedavg(deadline=5.0)))[1] < 3
    assert "left out" not in caplog.text


def test_the_global_model_is_evaluated_before_the_first_round_and_after_each() -> None:
    seen: list[int] = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        assert arrays.to_torch_state_dict().keys() == WORKLOAD.units.shapes.keys()
        seen.append(round_)
        return MetricRecord({"accuracy": 0.1 * round_})

    result = start(HoldingGrid(), 2, fedavg(), evaluate_fn=evaluate)
    assert seen == [0, 1, 2]
    assert {n: each["accuracy"] for n, each in result.evaluate_metrics_serverapp.items()} == {
        0: 0.0,
        1: 0.1,
        2: 0.2,
    }


@pytest.mark.slow
def test_every_strategy_runs_in_a_flower_app() -> None:
    model = models.build("small", (1, 8, 8), 10, 3)
    for name in STRATEGIES:
        chosen = AdaptCL(model, WORKLOAD.example(), workers=3, strategy=name)
        result = start(HoldingGrid(), 2, chosen)
        assert {1, 2} <= set(result.train_metrics_clientapp), name
        assert result.arrays.keys() == WORKLOAD.units.shapes.keys(), name


def test_where_every_node_fails_the_run_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flower_grid, "_TICK_S", 0.01)
    grid = LocalGrid()
    grid.silent = {(node, "1") for node in (11, 12, 13)}
    with pytest.raises(AdaptCLError, match=r"No worker is left: .* no power"):
        start(grid)


def test_an_error_of_the_grid_reaches_the_app() -> None:
    class Broken(HoldingGrid):
        def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        start(Broken(), 1, fedavg())


def test_flowers_own_loop_is_not_to_drive_it() -> None:
    arrays: Any = None
    with pytest.raises(NotImplementedError, match="call `start`"):
        fedavg().configure_train(1, arrays, arrays, arrays)


@pytest.mark.slow
def test_a_pruning_order_of_ones_own_that_workers_compute_prunes_where_train_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_order.py").write_text(OWN_ORDER)
    monkeypatch.syspath_prepend(tmp_path)

    class Pruning(LocalGrid):
        allowed = "own_order:Mine"

        def _answer(self, message: Message) -> Message:
            node = message.metadata.dst_node_id
            try:
                return train(
                    message,
                    self._contexts[node],
                    model=models.build("small", (1, 8, 8), 10, 3),
                    data=WORKLOAD.worker_samples[node - 11],
                    pruning=self.allowed,
                )
            except SettingError as error:  # As Flower does with a ClientApp that raises.
                return Message(Error(0, str(error)), reply_to=message)

    def retentions(grid: LocalGrid) -> list[float]:
        own = AdaptCL(
            models.build("small", (1, 8, 8), 10, 3),
            WORKLOAD.example(),
            workers=3,
            pruning="own_order:Mine",
            **SETTINGS,
        )
        arrays = ArrayRecord(models.build("small", (1, 8, 8), 10, 3).state_dict())
        metrics = own.start(grid, arrays, num_rounds=3).train_metrics_clientapp  # type: ignore[arg-type]
        return [each["smallest-retention"] for each in metrics.values()]  # type: ignore[misc]

    assert retentions(Pruning())[-1] == pytest.approx(0.7, abs=0.02)
    monkeypatch.setattr(Pruning, "allowed", "")
    assert retentions(Pruning())[-1] == 1.0, "what a message names is not imported for that"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prunning": "l1"}, "There is no setting 'prunning' for plain in `train`"),
        ({"epochs": 2.0}, "There is no setting 'epochs' for plain in `train`"),
        ({"pruning": "l3"}, "There is no pruning order 'l3'"),
        ({"pruning": "not_there:Order"}, "There is no module not_there"),
    ],
)
def test_train_takes_what_a_worker_decides_and_nothing_else(
    given: dict[str, Any], sentence: str
) -> None:
    asked: Any = None  # It is not even looked at.
    model = models.build("small", (1, 8, 8), 10, 3)
    with pytest.raises(SettingError, match=sentence):
        train(asked, asked, model=model, data=WORKLOAD.worker_samples[0], **given)


@pytest.mark.slow
def test_an_answer_of_which_a_codec_of_ones_own_makes_an_error_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: object, payload: object, reference: object) -> Any:
        if len(failed) < 1:
            failed.append(payload)
            raise ZeroDivisionError("mine")
        return decode(self, payload, reference)  # type: ignore[arg-type]

    failed: list[object] = []
    decode = DGC.decode
    monkeypatch.setattr(DGC, "decode", fail)
    assert workers(start(LocalGrid(), rounds=2)) == [2, 3]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epoch": 1}, "no setting 'epoch'"),
        ({"strategy": "none"}, "There is no strategy 'none'"),
        ({"codec": "zip"}, "There is no codec 'zip'"),
        ({"epochs": -1}, "epochs is -1, but it must be"),
        ({"strategy": "heterofl", "worker_widths": [0.5]}, "worker_widths has 1 entries"),
        ({"participants": 4}, "participants is 4"),
        ({"codec": "dgc", "dgc_sparsity": 2}, "dgc_sparsity is 2"),
        ({"workers": 0}, "workers is 0, but it must be at least 1"),
    ],
)
def test_settings_are_checked_when_they_are_given(given: dict[str, Any], sentence: str) -> None:
    model, example = models.build("small", (1, 8, 8), 10, 3), WORKLOAD.example()
    with pytest.raises(SettingError, match=sentence):
        AdaptCL(model, example, **{"workers": 3, **given})
