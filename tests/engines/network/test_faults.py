"""Machines die, hang and are cut off; the run goes on and says what happened.

Who is too late, and when, is never left to the machine that runs these tests: the server's clock
is set forward, processes and links are cut off, and workers hold their answers until what the
test is about has happened.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from safetensors.torch import load_file

from adaptcl.engines.network.worker.node import Node, OccupiedError
from adaptcl.events import Event, RunFinished, UpdateArrived, WorkerJoined, WorkerLost
from adaptcl.runs.result import Result

if TYPE_CHECKING:
    from tests.engines.network.conftest import Relay, Site

RATES = "0.3,0.2,0;0.2,0,0.1"
GONE = ("it is not heard of any more", "it was restarted")
"""What the server says of a worker that was killed: which of the two depends on who is first, the
server that looks or the next worker with the same key."""


def honestly(content: bytes) -> bytes:
    return content


def back(site: Site, worker: int) -> bool:
    """Whether a worker that was lost has come back."""
    lost, joined = site.of(WorkerLost, worker), site.of(WorkerJoined, worker)
    return bool(lost) and site.events.index(joined[-1]) > site.events.index(lost[-1])


def assert_same_model(result: Result, other: Result) -> None:
    theirs = other.model.state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)


def test_a_worker_that_answers_too_late_is_left_out_and_taken_back(site: Site) -> None:
    def too_late(content: bytes) -> bytes:
        site.wait_for(lambda: site.of(UpdateArrived, 0) and site.of(UpdateArrived, 1))
        site.clock.advance(3601)
        site.wait_for(lambda: site.of(WorkerLost, 2))
        return content

    site.worker(0, [honestly, site.after(lambda: back(site, 2))])
    site.worker(1)
    site.worker(2, [too_late])
    chosen = site.settings(strategy="fedavg", rounds=6)
    (result,) = site.serve(chosen, patience=3600)
    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert [(each.worker, each.round, each.reason) for each in lost] == [
        (2, 1, "it has not answered for 3600 s")
    ]
    assert site.of(WorkerJoined, 2)[-1].round == 2
    present = [[w.worker for w in record.workers] for record in result.rounds]
    assert present == [[0, 1], *[[0, 1, 2]] * 5]
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.02


def test_a_deadline_closes_rounds_without_the_one_that_hangs(site: Site) -> None:
    over = threading.Event()
    arrived: dict[int, set[int]] = {}

    def pass_the_deadline(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.round > 1:
            arrived.setdefault(event.round, set()).add(event.worker)
            if arrived[event.round] == {0, 1}:
                site.clock.advance(1e9)
        elif isinstance(event, RunFinished):
            over.set()

    site.whenever(pass_the_deadline)
    site.worker(0)
    site.worker(1)
    hanging = site.worker(2, [honestly, site.after(over.is_set)])
    chosen = site.settings(strategy="fedavg", rounds=6, deadline=1e6)
    (result,) = site.serve(chosen)
    assert [record.missing for record in result.rounds] == [(), *[(2,)] * 5]
    assert not any(isinstance(each, WorkerLost) for each in site.events), "it is only late"
    hanging.join()
    assert site.said_by[2][-1] == "the run is over"
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.05


@pytest.mark.parametrize("strategy", ["fedavg", "ssp-s"])
def test_a_worker_killed_in_a_task_comes_back_and_the_run_ends_whole(
    site: Site, strategy: str
) -> None:
    processes: list[subprocess.Popen[str]] = []

    def misfortune() -> None:
        site.wait_for_server()
        first = site.start_stuck_worker(2, site.port, task=2)
        site.wait_until(first, "in the middle of task 2")
        first.send_signal(signal.SIGKILL)
        processes.append(site.start_worker(2, site.port))

    held = [honestly, site.after(lambda: back(site, 2))]
    site.worker(0, held)
    site.worker(1, held)
    threading.Thread(target=misfortune, daemon=True).start()
    chosen = site.settings(strategy=strategy, rounds=6)
    (result,) = site.serve(chosen)
    assert site.ended(processes[0]) == 0
    assert "taking part as worker 2" in site.said(processes[0])

    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert {each.worker for each in lost} == {2}
    assert all(each.reason in GONE for each in lost)
    done = [w.worker for record in result.rounds for w in record.workers]
    assert [done.count(worker) for worker in range(3)] == [6, 6, 6]
    undisturbed = site.undisturbed(chosen)
    if strategy == "fedavg":
        assert_same_model(result, undisturbed)
    else:  # The order in which updates arrive is part of what an asynchronous run learns.
        assert result.summary.best_accuracy >= undisturbed.summary.best_accuracy - 0.05


@pytest.mark.parametrize("noticed_by", ["the server", "both"])
def test_a_link_that_is_cut_and_mended_costs_time_and_nothing_else(
    site: Site, noticed_by: str
) -> None:
    cut = threading.Event()

    def cut_before_the_second_task(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.worker == 2 and not cut.is_set():
            relays[0].cut.set()
            cut.set()

    def misfortune() -> None:
        site.wait_for_server()
        relays.append(site.relay(site.port))
        site.worker(2, through=relays[0].port, silence=20.0)
        site.wait_for(lambda: site.of(WorkerLost, 2))
        if noticed_by == "both":
            site.wait_for(lambda: any("waiting for" in line for line in site.said_by[2]))
        relays[0].cut.clear()

    relays: list[Relay] = []
    site.whenever(cut_before_the_second_task)
    site.worker(0, [honestly, site.after(lambda: back(site, 2))])
    site.worker(1)
    threading.Thread(target=misfortune, daemon=True).start()
    chosen = site.settings(strategy="fedavg", rounds=4)
    (result,) = site.serve(chosen)
    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert {each.worker for each in lost} == {2}
    assert (lost[0].round, lost[0].reason) == (2, "it is not heard of any more")
    assert all([w.worker for w in record.workers] == [0, 1, 2] for record in result.rounds)
    assert_same_model(result, site.undisturbed(chosen))


def test_a_second_worker_with_the_same_key_does_not_disturb_the_first(site: Site) -> None:
    refused: list[str] = []

    def intrude(content: bytes) -> bytes:
        second = site.connection(2)
        with pytest.raises(OccupiedError) as caught:
            Node(second.address, second.keys, second.silence).connected().__enter__()
        refused.append(str(caught.value))
        return content

    site.worker(0, [honestly, intrude])
    site.worker(1)
    site.worker(2)
    chosen = site.settings(strategy="fedavg", rounds=3)
    (result,) = site.serve(chosen)
    assert refused == ["A worker with this key is connected already."]
    assert not any(isinstance(each, WorkerLost) for each in site.events)
    assert_same_model(result, site.undisturbed(chosen))


@pytest.mark.parametrize("others", [{}, {"codec": "dgc", "checkpoint_every": 2}], ids=str)
def test_a_killed_server_goes_on_to_the_very_model_it_would_have_reached(
    site: Site, free_port: int, others: dict[str, Any]
) -> None:
    site.address = f"localhost:{free_port}"
    server = site.start_server(
        free_port, strategy="adaptcl", rounds=8, pruned_rates=RATES, **others
    )
    site.wait_until(server, "listening")
    in_the_fourth = [honestly] * 3 + [site.after(lambda: server.poll() is not None)]
    workers = [site.worker(n, in_the_fourth if n == 0 else (), at_once=True) for n in range(3)]
    site.wait_until(server, "round 3/8")
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = site.start("resume", "run")
    assert site.ended(again) == 0
    assert "round 8/8" in site.said(again)
    for number, worker in enumerate(workers):
        worker.join()
        assert site.said_by[number].count("taking part as worker " + str(number)) == 2
        assert site.said_by[number][-1] == "the run is over"

    rates = tuple(tuple(map(float, row.split(","))) for row in RATES.split(";"))
    undisturbed = site.undisturbed(
        site.settings(strategy="adaptcl", rounds=8, pruned_rates=rates, **others)
    ).model.state_dict()
    resumed = load_file(site.folder / "run" / "model.safetensors")
    for name, tensor in undisturbed.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-6)


def test_runs_of_one_command_go_on_together_with_the_same_workers(
    site: Site, free_port: int
) -> None:
    """In the order they had, whatever the order in which they are named."""
    site.address = f"localhost:{free_port}"
    server = site.start_server(free_port, strategy="fedavg,adaptcl", rounds=2, workers=1)
    site.wait_until(server, "listening")
    second = site.after(lambda: server.poll() is not None)
    third = site.after(lambda: resumed and resumed[0].poll() is not None)
    resumed: list[subprocess.Popen[str]] = []
    worker = site.worker(0, [honestly, second, third], at_once=True)
    site.wait_until(server, "round 1/2")
    site.interrupt(server)
    assert site.ended(server) == 130
    assert "stopped; `adaptcl resume run/fedavg run/adaptcl` goes on." in site.said(server)

    resumed.append(site.start("resume", "run/adaptcl", "run/fedavg"))
    site.wait_until(resumed[0], "worker 0 joined")
    site.interrupt(resumed[0])
    assert site.ended(resumed[0]) == 130
    stopped = re.search(r"stopped; `adaptcl resume (.*)` goes on\.", site.said(resumed[0]))
    assert stopped is not None
    assert set(stopped[1].split()) == {"run/fedavg", "run/adaptcl"}

    resumed.append(site.start("resume", "run/adaptcl", "run/fedavg"))
    assert site.ended(resumed[1]) == 0
    said = site.said(resumed[1])
    assert said.index("fedavg finished 2 rounds") < said.index("adaptcl finished 2 rounds")
    worker.join()
    assert site.said_by[0].count("the run is over") == 1
    assert site.said_by[0][-1] == "the run is over"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is always full")
def test_a_full_disk_ends_a_server_with_how_to_go_on(site: Site, free_port: int) -> None:
    site.address = f"localhost:{free_port}"
    server = site.start_server(free_port, strategy="fedavg", rounds=2, workers=1)
    site.wait_until(server, "listening")
    (site.folder / "run" / "rounds.jsonl").unlink()
    (site.folder / "run" / "rounds.jsonl").symlink_to("/dev/full")
    site.worker(0, at_once=True)
    assert site.ended(server) == 2
    assert "rounds.jsonl cannot be written: No space left on device." in site.said(server)
    assert "stopped; `adaptcl resume run` goes on." in site.said(server)


def test_ctrl_c_leaves_no_process_port_or_folder(site: Site, free_port: int) -> None:
    server = site.start_server(free_port, strategy="fedavg", rounds=10**6, workers=1)
    worker = site.start_worker(0, free_port)
    site.wait_until(server, "round 1/1000000")
    before = {path.name for path in site.folder.iterdir()}
    worker.send_signal(signal.SIGTERM)
    site.interrupt(server)
    assert (site.ended(worker), site.ended(server)) == (130, 130)
    assert "`adaptcl resume run` goes on" in site.said(server)
    assert {path.name for path in site.folder.iterdir()} == before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", free_port))
