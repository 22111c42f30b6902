"""Machines die, hang and lie; the run goes on and says what happened."""

from __future__ import annotations

import dataclasses
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from safetensors.torch import load_file

from adaptcl.engines.flower.frames import Frame, pack_kept
from adaptcl.engines.flower.node import Incoming, Node
from adaptcl.engines.flower.trainer import Trainer
from adaptcl.events import Event, RoundFinished, Warned, WorkerJoined, WorkerLost
from adaptcl.materials import by_name
from adaptcl.run import execute

if TYPE_CHECKING:
    from tests.engines.flower.conftest import Site

Spoil = Callable[[bytes], bytes]
RATES = "0.3,0.2,0;0.2,0,0.1"


class Liar(Trainer):
    """A worker that spoils its answers, one way after the other."""

    ways: ClassVar[list[Spoil]] = []

    def _take_part(self, node: Node, incoming: Incoming) -> None:
        super()._take_part(node, incoming)
        assert self._taking_part is not None
        honest = self._taking_part.carry_out
        ways = iter(self.ways)
        self._taking_part.carry_out = (  # type: ignore[method-assign]
            lambda content: next(ways, _honestly)(honest(content))
        )


def _honestly(content: bytes) -> bytes:
    return content


def _slowly(content: bytes) -> bytes:
    time.sleep(0.4)
    return content


def _until_all_are_back(site: Site) -> Spoil:
    """Answers slowly and, once a worker is lost, not before it is back: no race with the end."""

    def hold(content: bytes) -> bytes:
        time.sleep(0.4)
        limit = time.monotonic() + 90
        while time.monotonic() < limit:
            lost = sum(isinstance(each, WorkerLost) for each in site.events)
            back = sum(isinstance(each, WorkerJoined) and each.round > 1 for each in site.events)
            if back >= lost:
                break
            time.sleep(0.05)
        return content

    return hold


def _changed(content: bytes, **tensors: torch.Tensor) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, tensors={**frame.tensors, **tensors}).to_bytes()


def _wrong_shape(content: bytes) -> bytes:
    return _changed(content, **{"payload:classifier.bias": torch.zeros(9)})


def _not_a_number(content: bytes) -> bytes:
    return _changed(content, **{"payload:classifier.bias": torch.full((10,), float("nan"))})


def _missing_units(content: bytes) -> bytes:
    kept = torch.ones(176, dtype=torch.bool)
    kept[0] = False
    return _changed(content, kept=pack_kept(kept))


def _too_many_units(content: bytes) -> bytes:
    return _changed(content, kept=torch.ones(999, dtype=torch.uint8))


def _long_gone(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "round": 0}).to_bytes()


def _infinite_loss(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "loss": float("inf")}).to_bytes()


def _noise(content: bytes) -> bytes:
    return b"\xff" * 1000


def _code(content: bytes) -> bytes:
    return b"cos\nsystem\n(S'touch /tmp/owned'\ntR."


def warnings(events: list[Event]) -> str:
    return "\n".join(each.message for each in events if isinstance(each, Warned))


def test_answers_that_cannot_be_used_change_nothing_but_the_log(site: Site) -> None:
    class Mixed(Liar):
        ways: ClassVar[list[Spoil]] = [
            *(_wrong_shape, _not_a_number, _honestly),
            *(_missing_units, _too_many_units, _honestly),
            *(_long_gone, _infinite_loss, _honestly),
            *(_noise, _code, _honestly),
        ]

    site.worker(0)
    site.worker(1)
    site.worker(2, trainer=Mixed)
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=12))
    said = warnings(site.events)
    for word in (
        "must be [10]",
        "not finite",
        "without being told to",
        "not those of 176 units",
        "answered for round 0",
        "loss is inf",
        "cannot be read",
    ):
        assert word in said
    assert said.count("Worker 2's answer was not used") == 8
    assert result.summary.accuracy > 0.9
    assert all(torch.isfinite(t).all() for t in result.model.state_dict().values())


def test_a_worker_that_only_lies_gets_no_more_tasks(site: Site) -> None:
    class Always(Liar):
        ways: ClassVar[list[Spoil]] = [_noise] * 99

    site.worker(0)
    site.worker(1)
    site.worker(2, trainer=Always)
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=6))
    assert "Worker 2 gets no more tasks after 3 such answers" in warnings(site.events)
    assert [w.worker for w in result.rounds[-1].workers] == [0, 1]
    assert result.summary.accuracy > 0.8


def test_a_worker_that_answers_too_late_is_left_out_and_taken_back(site: Site) -> None:
    slept = threading.Event()

    def sleep(content: bytes) -> bytes:
        time.sleep(5)
        slept.set()
        return content

    class Sleeper(Liar):
        ways: ClassVar[list[Spoil]] = [sleep]

    site.worker(0)
    site.worker(1)
    site.worker(2, trainer=Sleeper)
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=25), patience=2.5)
    assert slept.is_set()
    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert [(each.worker, each.reason) for each in lost] == [(2, "it has not answered for 2.5 s")]
    assert any(isinstance(each, WorkerJoined) and each.round > 1 for each in site.events)
    assert 2 in {w.worker for w in result.rounds[-1].workers}


def test_a_deadline_closes_rounds_without_the_one_that_hangs(site: Site) -> None:
    hang = threading.Event()

    class Hanging(Liar):
        ways: ClassVar[list[Spoil]] = [_honestly, lambda content: bytes(hang.wait(60))]

    site.worker(0)
    site.worker(1)
    site.worker(2, trainer=Hanging)
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=4, deadline=3.0))
    hang.set()
    assert [record.missing for record in result.rounds][1:] == [(2,)] * 3


def test_a_worker_killed_in_the_middle_comes_back_and_the_run_ends_whole(site: Site) -> None:
    class Slow(Liar):
        ways: ClassVar[list[Spoil]] = [_until_all_are_back(site)] * 999

    def misfortune() -> None:
        site.wait_for_server()
        first = site.start_worker(2, site.port, "--silence", "20")
        site.wait_for(lambda: any(isinstance(each, RoundFinished) for each in site.events))
        first.send_signal(signal.SIGKILL)
        again.append(site.start_worker(2, site.port, "--silence", "20"))

    again: list[subprocess.Popen[str]] = []
    site.worker(0, trainer=Slow)
    site.worker(1)
    threading.Thread(target=misfortune, daemon=True).start()
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=20))
    assert again[0].wait(20) == 0
    said = site.said(again[0])
    assert said.index("is connected already") < said.index("taking part as worker 2")
    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert [each.worker for each in lost] == [2]
    # By which of the two depends on who is first: the server that looks, or the worker that asks.
    assert lost[0].reason in ("it is not heard of any more", "it was restarted")
    assert any(isinstance(each, WorkerJoined) and each.round > 1 for each in site.events)
    assert [w.worker for w in result.rounds[-1].workers] == [0, 1, 2]
    assert result.summary.accuracy > 0.9


def test_a_link_that_is_cut_for_a_while_costs_a_worker_a_few_rounds(site: Site) -> None:
    def misfortune() -> None:
        site.wait_for_server()
        relay = site.relay(site.port)
        site.worker(2, through=relay.port)
        site.wait_for(lambda: any(isinstance(each, RoundFinished) for each in site.events))
        relay.cut.set()
        site.wait_for(lambda: any(isinstance(each, WorkerLost) for each in site.events))
        relay.cut.clear()

    class Slow(Liar):
        ways: ClassVar[list[Spoil]] = [_until_all_are_back(site)] * 999

    site.worker(0, trainer=Slow)
    site.worker(1)
    threading.Thread(target=misfortune, daemon=True).start()
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=30))
    assert [each.worker for each in site.events if isinstance(each, WorkerLost)] == [2]
    assert any(isinstance(each, WorkerJoined) and each.round > 1 for each in site.events)
    assert [w.worker for w in result.rounds[-1].workers] == [0, 1, 2]
    assert result.summary.accuracy > 0.9


def test_a_killed_server_goes_on_to_the_very_model_it_would_have_reached(
    site: Site, free_port: int
) -> None:
    site.address = f"localhost:{free_port}"
    server = site.start_server(free_port, strategy="adaptcl", rounds=8, pruned_rates=RATES)
    site.wait_until(server, "listening")
    workers = [site.worker(number, at_once=True) for number in range(3)]
    site.wait_until(server, "round 3/8")
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = site.start("resume", "run")
    assert again.wait(60) == 0, site.said(again)
    assert "round 8/8" in site.said(again)
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()

    rates = tuple(tuple(map(float, row.split(","))) for row in RATES.split(";"))
    chosen = site.settings(strategy="adaptcl", rounds=8, pruned_rates=rates)
    simulated = execute(chosen, by_name(chosen.job)).model.state_dict()
    resumed = load_file(site.folder / "run" / "model.safetensors")
    for name, tensor in simulated.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-6)


def test_ctrl_c_leaves_no_process_port_or_folder(site: Site, free_port: int) -> None:
    server = site.start_server(free_port, strategy="fedavg", rounds=500, workers=1)
    worker = site.start_worker(0, free_port)
    site.wait_until(server, "round 1/500")
    before = {path.name for path in site.folder.iterdir()}
    worker.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGINT)
    assert (worker.wait(10), server.wait(10)) == (130, 130)
    assert "`adaptcl resume run` goes on" in site.said(server)
    assert {path.name for path in site.folder.iterdir()} == before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", free_port))
