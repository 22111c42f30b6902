"""AdaptCL as a strategy of somebody's Flower app gives what a simulation gives."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="adaptcl.flower needs flwr: pip install 'adaptcl[network]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.supercore.task_identity import TaskIdentity

from adaptcl import config, models
from adaptcl.codecs.dgc import DGC
from adaptcl.engines.network.frames import Frame, from_record, to_record
from adaptcl.errors import SettingError
from adaptcl.flower import AdaptCL, train
from adaptcl.runs.session import execute
from adaptcl.runs.workload import load_workload

SETTINGS: dict[str, Any] = {
    "epochs": 1.0,
    "batch_size": 32,
    "learning_rate": 0.05,
    "strength": 0.5,
    "pruning_interval": 2,
    "pruned_rates": ((0.3, 0.2, 0.0),),
}
CONFIG = config.configure(
    {"model": "small", "data": "digits", "workers": 3, "rounds": 4, "seed": 3, "codec": "dgc"}
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


class Loop:
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

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

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
            seed=3,
        )
        if (node, message.metadata.group_id) in self.unheard:
            return Message(Error(0, "no line"), reply_to=message)
        return answer


def strategy() -> AdaptCL:
    return AdaptCL(
        models.build("small", (1, 8, 8), 10, 3),
        WORKLOAD.example(),
        workers=3,
        codec="dgc",
        seed=3,
        **SETTINGS,
    )


def start(loop: Any, rounds: int = 4) -> Any:
    arrays = ArrayRecord(models.build("small", (1, 8, 8), 10, 3).state_dict())
    return strategy().start(loop, arrays, num_rounds=rounds)


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets only a running app make messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def test_the_model_is_that_of_a_simulation() -> None:
    result = start(Loop())
    simulated = execute(CONFIG, WORKLOAD).model.state_dict()
    for name, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, simulated[name], rtol=0, atol=1e-6)
    assert result.train_metrics_clientapp[4]["smallest-retention"] == pytest.approx(0.7, abs=0.02)


def test_a_node_that_fails_is_left_out_of_its_round_and_then_taken_back() -> None:
    loop = Loop()
    loop.silent = {(12, "2")}
    result = start(loop)
    workers = [result.train_metrics_clientapp[number]["workers"] for number in (1, 2, 3, 4)]
    assert workers == [3, 2, 3, 3]


def test_an_answer_that_got_lost_is_as_if_the_codec_had_not_sent_it() -> None:
    lost, idle = Loop(), Loop()
    lost.unheard = idle.silent = {(12, "2"), (13, "3")}
    one, other = (start(loop).arrays.to_torch_state_dict() for loop in (lost, idle))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_node_that_gives_itself_more_weight_than_it_began_with_is_left_out() -> None:
    class Growing(Loop):
        def _answer(self, message: Message) -> Message:
            answer = super()._answer(message)
            if (message.metadata.dst_node_id, message.metadata.group_id) != (13, "2"):
                return answer
            frame = Frame.from_bytes(from_record(answer.content))
            larger = Frame({**frame.header, "samples": 10**15}, frame.tensors)
            return Message(to_record(larger.to_bytes()), reply_to=message)

    metrics = start(Growing(), rounds=3).train_metrics_clientapp
    assert [metrics[number]["workers"] for number in (1, 2, 3)] == [3, 2, 3]


def test_a_node_with_a_slow_link_is_the_slow_one() -> None:
    class Slow(Loop):
        def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
            if "0" in names:
                time.sleep(1.5)  # As Flower's grid does while an answer is still being sent.
            return super().pull_messages(names)

    metrics = start(Slow(), rounds=1).train_metrics_clientapp[1]
    assert metrics["slowest-update-time"] > 1.5
    assert metrics["heterogeneity"] > 0.15


def test_configure_and_aggregate_serve_a_loop_of_ones_own() -> None:
    own, loop = strategy(), Loop()
    arrays: Any = ArrayRecord(models.build("small", (1, 8, 8), 10, 3).state_dict())
    for number in (1, 2):
        messages = own.configure_train(number, arrays, ConfigRecord(), loop)  # type: ignore[arg-type]
        arrays, metrics = own.aggregate_train(number, loop.send_and_receive(messages))
        assert metrics is not None
        slowest = metrics["slowest-update-time"]
        assert isinstance(slowest, float)
        assert slowest > 0


def test_a_pruning_order_of_ones_own_that_workers_compute_prunes_where_train_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_order.py").write_text(OWN_ORDER)
    monkeypatch.syspath_prepend(tmp_path)

    class Pruning(Loop):
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

    def retentions(loop: Loop) -> list[float]:
        own = AdaptCL(
            models.build("small", (1, 8, 8), 10, 3),
            WORKLOAD.example(),
            workers=3,
            pruning="own_order:Mine",
            **SETTINGS,
        )
        arrays = ArrayRecord(models.build("small", (1, 8, 8), 10, 3).state_dict())
        metrics = own.start(loop, arrays, num_rounds=3).train_metrics_clientapp  # type: ignore[arg-type]
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
    metrics = start(Loop()).train_metrics_clientapp
    assert [metrics[number]["workers"] for number in (1, 2, 3, 4)] == [2, 3, 3, 3]


def test_strategies_without_a_barrier_and_unknown_settings_are_refused() -> None:
    model, example = models.build("small", (1, 8, 8), 10, 3), WORKLOAD.example()
    with pytest.raises(SettingError, match="must be one with a barrier"):
        AdaptCL(model, example, workers=3, strategy="ssp-s")
    with pytest.raises(SettingError, match="no setting 'epoch'"):
        AdaptCL(model, example, workers=3, epoch=1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
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


@pytest.mark.parametrize("setting", [{"deadline": 2.0}, {"late_updates": "drop"}])
def test_settings_that_flowers_loop_cannot_carry_out_point_to_what_can(setting: Any) -> None:
    model, example = models.build("small", (1, 8, 8), 10, 3), WORKLOAD.example()
    with pytest.raises(SettingError, match=rf"{next(iter(setting))} would do nothing.*`timeout`"):
        AdaptCL(model, example, workers=3, **setting)
