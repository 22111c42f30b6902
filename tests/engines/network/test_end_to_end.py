"""Real servers and workers over real sockets: few runs, chosen for what only they can show.

Who is too late, and when, is never left to the machine that runs these tests: the server's clock is
set forward, processes and links are cut off, and workers hold their answers until what the test is
about has happened.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from safetensors.torch import load_file

import adaptcl
from adaptcl import models
from adaptcl.data import load
from adaptcl.engines.network.frames import Frame
from adaptcl.errors import AdaptCLError, DivergedError
from adaptcl.events import Event, UpdateArrived, Warned, WorkerJoined, WorkerLost
from adaptcl.runs.network import session as network_session
from adaptcl.runs.network.session import serve_again
from adaptcl.runs.network.worker import OwnerChoices, work
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.session import Session, run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import workload_from_python
from adaptcl.training.objectives.objective import find_objective

if TYPE_CHECKING:
    from tests.engines.network.conftest import Relay, Site

RATES = ((0.3, 0.2), (0.2, 0.0))
GONE = ("it is not heard of any more", "it was restarted")
"""What the server says of a worker that was killed. Which of the two depends on who is first: the
server that looks, or the next worker with the same key."""


def honestly(content: bytes) -> bytes:
    return content


def back(site: Site, worker: int) -> bool:
    """Whether a worker that was lost has come back."""
    lost, joined = site.of(WorkerLost, worker), site.of(WorkerJoined, worker)
    return bool(lost) and site.events.index(joined[-1]) > site.events.index(lost[-1])


def assert_same_model(result: FinishedRun, other: FinishedRun) -> None:
    theirs = other.model.state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", ["digits", "workers"])
def test_a_worker_says_that_it_waits_and_when_training_begins(site: Site, data: str) -> None:
    """Also one that has told of its data, and cannot be invited before the others have."""
    first = site.worker(0)
    waiting = "waiting, as worker 0, for the other one"

    def start_the_other() -> None:
        site.wait_for(lambda: waiting in site.said_by.get(0, ()))
        site.worker(1)

    threading.Thread(target=start_the_other, daemon=True).start()
    site.serve(site.settings(strategy="fedavg", rounds=1, data=data, holdout=0.2))
    first.join()
    before_training = ["taking part as worker 0", waiting]
    said = site.said_by[0][1:4]
    assert said[:2] == (before_training[::-1] if data == "workers" else before_training)
    assert said[2] == "training begins with round 1"


@pytest.mark.parametrize("data", ["digits", "workers"])
@pytest.mark.parametrize("strategy", ["adaptcl", "fedasync-s"])
def test_a_run_begins_with_enough_workers_and_takes_in_the_one_that_comes_late(
    site: Site, data: str, strategy: str
) -> None:
    """Whether or not the workers first had to tell of their data."""

    def is_said(line: str) -> Callable[[], bool]:
        return lambda: all(line in " ".join(site.said_by.get(n, ())) for n in (0, 1))

    waited: list[float] = []

    def let_time_pass() -> None:
        site.wait_for(is_said("for 1 of 2 others"))
        site.clock.advance(3600)
        began = time.monotonic()
        site.wait_for(is_said("training begins"))
        waited.append(time.monotonic() - began)
        site.worker(2)

    for number in range(2):
        site.worker(number, [honestly, site.after(lambda: site.of(WorkerJoined, 2))])
    threading.Thread(target=let_time_pass, daemon=True).start()
    chosen = site.settings(strategy=strategy, workers=3, rounds=4, data=data, holdout=0.2)
    (result,) = site.serve(chosen, patience=3600.0, least_workers=2)
    assert result.rounds[0].missing == (2,)
    assert waited[0] < 25, "not another half a minute, after the one for their data"
    assert site.of(WorkerLost, 2)[0].reason == "it has not come"
    assert site.of(WorkerJoined, 2)
    assert result.summary.updates[2] > 0


def size(result: FinishedRun) -> int:
    return sum(t.numel() * t.element_size() for t in result.model.state_dict().values())


def test_three_runs_with_the_same_workers_give_the_models_of_simulations(site: Site) -> None:
    """Bit for bit, unless updates that arrive in another order are rounded differently."""
    configs = (
        site.settings(strategy="fedavg", rounds=2),
        site.settings(strategy="adaptcl", rounds=4, pruned_rates=RATES, codec="dgc"),
        site.settings(strategy="fedavg-s", rounds=50, target_accuracy=2, codec="int8"),
    )
    workers = [site.worker(number) for number in range(2)]
    first, second, third = results = site.serve(*configs)
    for result, config in zip(results, configs, strict=True):
        simulated = site.undisturbed(config)
        assert_same_model(result, simulated)
        assert result.summary.retention == simulated.summary.retention
    assert (third.summary.rounds, third.summary.stopped_by) == (5, "target_accuracy")
    assert second.summary.retention[0] < 0.6

    assert not any(isinstance(each, Warned | WorkerLost) for each in site.events)
    for number, worker in enumerate(workers):
        worker.join()
        assert site.said_by[number][-1] == "the run is over"
    assert not list(site.folder.glob("memory-*/*")), "what they remembered is forgotten"

    assert 0 < first.rounds[0].virtual_time_s < first.rounds[1].virtual_time_s
    for record in first.rounds:
        for worker_record in record.workers:
            times = (worker_record.send_s, worker_record.train_s, worker_record.receive_s)
            assert min(times) > 0
            assert sum(times) == pytest.approx(worker_record.update_time_s)
            assert worker_record.bytes_sent == pytest.approx(size(first), rel=0.03)
            assert worker_record.bytes_received == pytest.approx(size(first), rel=0.03)

    # Both ways in eight bits, beside names and lengths of tensors; the first run had two rounds.
    payload = site.undisturbed(configs[2]).summary
    for found, alone in (
        (third.summary.bytes_sent, payload.bytes_sent),
        (third.summary.bytes_received, payload.bytes_received),
    ):
        assert alone < found < alone + 5 * 4 * 6000
        assert alone / 5 < 0.3 * first.summary.bytes_sent / 2


def test_a_server_without_data_gets_its_metrics_from_three_workers_alone(site: Site) -> None:
    """The same as of a simulation that deals, and holds back, the same samples."""
    train = load("digits").train
    described = {"shape": train.shape, "classes": 10, "mean": train.mean, "std": train.std}
    file = site.folder / "inputs.json"
    file.write_text(json.dumps(described))
    job = {"strategy": "fedavg", "workers": 3, "rounds": 2, "samples": 150, "holdout": 0.2}
    for number in range(3):
        site.worker(number)
    (result,) = site.serve(site.settings(**job, data=f"inputs:{file}"))

    simulated = site.undisturbed(site.settings(**job))
    assert_same_model(result, simulated)
    assert [each.worker_values for each in result.rounds] == [
        each.worker_values for each in simulated.rounds
    ]
    assert [w.test.samples for w in result.rounds[0].workers if w.test] == [10, 10, 10]
    assert result.worker_metrics == simulated.worker_metrics
    assert {len(each) for each in result.worker_metrics} == {1}
    assert result.summary.accuracy == simulated.summary.accuracy
    assert adaptcl.load(site.folder / "run").inputs.mean == train.mean


OWN_TASKS = """
import torch
from torch import nn
import adaptcl

def table(data_dir):
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(160, 8, generator=dice)
    y = x @ torch.linspace(-1, 1, 8) + 0.1 * torch.randn(160, generator=dice)
    return (x[:120], y[:120]), (x[120:], y[120:])

def mlp(shape, outputs):
    return nn.Sequential(nn.Linear(*shape, 32), nn.ReLU(), nn.Linear(32, outputs))

def of_worker_0(data_dir):
    (x, y), test = table(data_dir)
    return (50 + 3 * x[:40], y[:40]), test

def of_worker_1(data_dir):
    (x, y), test = table(data_dir)
    return (10 + 20 * x[40:], y[40:]), test

def pairs(data_dir):
    return tuple(
        ({"left": x[:, :3], "right": x[:, 3:]}, (y, 1 + y.abs())) for x, y in table(data_dir)
    )

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 16), nn.Linear(5, 16), nn.Linear(16, 1)

    def forward(self, left, right):
        return {"logits": self.head(torch.relu(self.left(left) + self.right(right)))[:, 0]}

def pair(shape, outputs):
    return Pair()

def weighted():
    def loss(outputs, targets):
        wanted, weight = targets
        return weight * (outputs - wanted).square()

    def worst(outputs, targets):
        return (outputs - targets[0]).abs().max()

    return adaptcl.custom_objective(loss=loss, metrics={"worst": worst})
"""
FLOATS = {"shape": [], "kind": "float32"}


@pytest.fixture
def _own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tasks.py").write_text(OWN_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_tasks", raising=False)


@pytest.mark.parametrize(
    ("objective", "data", "model", "described"),
    [
        (
            "regression",
            "own_tasks:table",
            "own_tasks:mlp",
            {"shape": [8], "kind": "float32", "targets": FLOATS, "outputs": 1},
        ),
        (
            "own_tasks:weighted",
            "own_tasks:pairs",
            "own_tasks:pair",
            {
                "parts": {
                    "left": {"shape": [3], "kind": "float32"},
                    "right": {"shape": [5], "kind": "float32"},
                },
                "targets": [FLOATS, FLOATS],
                "outputs": 1,
            },
        ),
    ],
    ids=["regression", "custom"],
)
@pytest.mark.usefixtures("_own_tasks")
def test_a_server_without_data_trains_for_any_objective_and_workers_measure_its_metrics(
    site: Site, objective: str, data: str, model: str, described: dict[str, object]
) -> None:
    file = site.folder / "inputs.json"
    file.write_text(json.dumps(described))
    job = {
        **{"strategy": "fedavg", "rounds": 3, "samples": 0, "holdout": 0.2, "batch_size": 16},
        **{"objective": objective, "model": model},
    }
    for number in range(2):
        site.worker(number, model=model, data=data, objective=objective)
    (result,) = site.serve(site.settings(**job, data=f"inputs:{file}"))

    simulated = site.undisturbed(site.settings(**job, data=data))
    assert_same_model(result, simulated)
    assert result.summary.metrics == pytest.approx(simulated.summary.metrics)
    assert [each.worker_values for each in result.rounds] == [
        pytest.approx(each.worker_values) for each in simulated.rounds
    ]
    main = [each.main_value for each in result.rounds if each.main_value is not None]
    assert main[-1] < 0.8 * main[0]


@pytest.mark.usefixtures("_own_tasks")
def test_workers_of_a_server_that_knows_nothing_normalise_by_all_their_data_together(
    site: Site,
) -> None:
    """As a simulation does of the same parts with the mean and the deviation of the whole."""
    job = {
        **{"strategy": "fedavg", "rounds": 2, "samples": 0, "holdout": 0.2, "batch_size": 16},
        **{"objective": "regression", "model": "own_tasks:mlp"},
    }
    for number in range(2):
        data = f"own_tasks:of_worker_{number}"
        site.worker(number, model="own_tasks:mlp", data=data, objective="regression", dealt=False)
    chosen = site.settings(**job, data="workers")
    (result,) = site.serve(chosen)

    parts = [load(f"own_tasks:of_worker_{n}", targets="floats").train for n in range(2)]
    pooled = torch.cat([each.inputs for each in parts]).double()
    mean, std = pooled.mean(0).tolist(), pooled.std(0, correction=0).tolist()
    known = adaptcl.load(site.folder / "run", model=models.build("own_tasks:mlp", (8,), 1, 0))
    assert known.inputs.mean == pytest.approx(mean)
    assert known.inputs.std == pytest.approx(std)
    assert known.inputs.width == 1
    normalised = [replace(each, mean=tuple(mean), std=tuple(std)) for each in parts]
    workload = workload_from_python(
        models.build("own_tasks:mlp", (8,), 1, chosen.job.seed),
        normalised,
        None,
        chosen.job,
        find_objective("regression"),
    )
    simulated = run_session(simulated_session(chosen, workload))
    assert_same_model(result, simulated)
    assert result.summary.metrics == pytest.approx(simulated.summary.metrics, rel=1e-4)
    raw = torch.cat([each.inputs for each in parts])[:5]
    expected = known.model((raw - torch.tensor(mean)) / torch.tensor(std))
    torch.testing.assert_close(known(raw), expected, rtol=1e-4, atol=1e-4)


def images(root: Path, of: Sequence[str], size: int = 8) -> str:
    """A folder in which a class is how bright its pictures are."""
    for name in of:
        (root / name).mkdir(parents=True)
        for number in range(8):
            pixel = 20 + 70 * (ord(name[0]) - ord("a")) + number
            Image.new("L", (size, size), min(pixel, 255)).save(root / name / f"{number}.png")
    return f"folder:{root.parent}"


def test_workers_with_other_classes_and_sizes_learn_what_the_server_means(site: Site) -> None:
    """And one with a class that the server does not know is refused on both sides."""
    classes = ("apple", "bone", "cyst", "dot")
    images(site.folder / "server" / "train", classes)
    data = images(site.folder / "server" / "test", classes)
    parts = [(classes[1:], 13), (classes[:3], 8), ((classes[0], classes[3]), 30), (("elbow",), 8)]
    folders = [
        images(site.folder / f"own-{number}" / "train", part, size)
        for number, (part, size) in enumerate(parts)
    ]
    said: list[str] = []

    def take_part(number: int, *folders: str) -> None:
        site.wait_for_server()
        memory = site.folder / f"memory-{number}"
        for folder in folders:
            owner = OwnerChoices(folder, "", "", "cpu", dealt=False)
            try:
                work(owner, site.connection(number), memory, lambda _: None)
            except AdaptCLError as error:
                said.append(str(error))

    threading.Thread(target=take_part, args=(0, folders[3], folders[0]), daemon=True).start()
    for number in (1, 2):
        threading.Thread(target=take_part, args=(number, folders[number]), daemon=True).start()
    recipe = {"rounds": 6, "epochs": 4.0, "batch_size": 8}
    chosen = site.settings(data=data, samples=0, workers=3, strategy="fedavg", **recipe)
    (result,) = site.serve(chosen)
    sentence = "The worker has the class 'elbow', which the server does not know"
    assert said[0].startswith(sentence)
    (warned,) = [each.message for each in site.events if isinstance(each, Warned)]
    assert warned.startswith(f"Worker 0 cannot take part: {sentence}")
    assert result.summary.best_accuracy == 1.0


@pytest.mark.usefixtures("short_silence")
def test_a_worker_killed_in_a_task_comes_back_and_the_run_ends_whole(site: Site) -> None:
    processes: list[subprocess.Popen[str]] = []

    def misfortune() -> None:
        site.wait_for_server()
        first = site.start_stuck_worker(1, site.port, task=2)
        site.wait_until(first, "in the middle of task 2")
        first.send_signal(signal.SIGKILL)
        processes.append(site.start_worker(1, site.port))

    site.worker(0, [honestly, site.after(lambda: back(site, 1))])
    threading.Thread(target=misfortune, daemon=True).start()
    chosen = site.settings(strategy="fedavg")
    (result,) = site.serve(chosen)
    assert site.ended(processes[0]) == 0
    assert "taking part as worker 1" in site.said(processes[0])
    assert {each.reason for each in site.of(WorkerLost, 1)} <= set(GONE)
    assert not site.of(WorkerLost, 0)
    assert all([w.worker for w in record.workers] == [0, 1] for record in result.rounds)
    assert_same_model(result, site.undisturbed(chosen))


@pytest.mark.usefixtures("short_silence")
def test_a_link_that_is_cut_and_mended_costs_time_and_nothing_else(site: Site) -> None:
    def cut_before_the_second_task(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.worker == 1 and not site.of(WorkerLost, 1):
            relays[0].cut.set()

    def misfortune() -> None:
        site.wait_for_server()
        relays.append(site.relay(site.port))
        site.worker(1, through=relays[0].port, silence=5.0)
        site.wait_for(lambda: site.of(WorkerLost, 1))
        relays[0].cut.clear()

    relays: list[Relay] = []
    site.whenever(cut_before_the_second_task)
    site.worker(0, [honestly, site.after(lambda: back(site, 1))])
    threading.Thread(target=misfortune, daemon=True).start()
    chosen = site.settings(strategy="fedavg")
    (result,) = site.serve(chosen)
    lost = [each for each in site.events if isinstance(each, WorkerLost)]
    assert {each.worker for each in lost} == {1}
    assert (lost[0].round, lost[0].reason) == (2, "it is not heard of any more")
    assert all([w.worker for w in record.workers] == [0, 1] for record in result.rounds)
    assert_same_model(result, site.undisturbed(chosen))


def test_a_killed_server_goes_on_to_the_very_model_it_would_have_reached(
    site: Site, free_port: int
) -> None:
    """With a codec that leaves things unsent, and a checkpoint from two rounds before."""
    site.address = f"localhost:{free_port}"
    table = ";".join(",".join(map(str, row)) for row in RATES)
    server = site.start_server(
        free_port, strategy="adaptcl", rounds=6, pruned_rates=table, codec="dgc", checkpoint_every=2
    )
    site.wait_until(server, "listening")
    in_the_fourth = [honestly] * 3 + [site.after(lambda: server.poll() is not None)]
    workers = [site.worker(n, in_the_fourth if n == 0 else (), at_once=True) for n in range(2)]
    site.wait_until(server, "round 3/6")
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = site.start("resume", "run")
    assert site.ended(again) == 0
    assert "round 6/6" in site.said(again)
    for number, worker in enumerate(workers):
        worker.join()
        assert site.said_by[number].count(f"taking part as worker {number}") == 2
        assert site.said_by[number][-1] == "the run is over"

    chosen = site.settings(
        strategy="adaptcl", rounds=6, pruned_rates=RATES, codec="dgc", checkpoint_every=2
    )
    resumed = load_file(site.folder / "run" / "model.safetensors")
    for name, tensor in site.undisturbed(chosen).model.state_dict().items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-6)


PRETRAINED = """
import torch
from torch import nn

BUILT = []

def build(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, classes))
    model[1].requires_grad_(False)
    nn.init.normal_(model[1].weight, std=0.1, generator=torch.Generator().manual_seed(len(BUILT)))
    BUILT.append(model)
    return model
"""


def test_frozen_tensors_travel_once_and_again_to_a_worker_that_was_restarted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine builds a model with other values, so nobody has the server's before."""
    (tmp_path / "pretrained.py").write_text(PRETRAINED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pretrained", raising=False)

    def switch_off(content: bytes) -> bytes:
        raise SystemExit

    def misfortune() -> None:
        site.worker(1, [honestly, switch_off], model="pretrained:build").join()
        site.worker(1, model="pretrained:build")

    site.worker(0, [honestly, site.after(lambda: back(site, 1))], model="pretrained:build")
    threading.Thread(target=misfortune, daemon=True).start()
    (result,) = site.serve(site.settings(strategy="fedavg", model="pretrained:build"))
    frozen, trained = 4 * 65 * 1000, 4 * 1001 * 10
    sent = {
        (each.worker, record.round): each.bytes_sent - trained
        for record in result.rounds
        for each in record.workers
    }
    again = {(0, 1), (1, 1), (1, 2)}
    assert sent.keys() == {(worker, number) for worker in (0, 1) for number in (1, 2, 3)}
    for task, more in sent.items():
        assert 0 < more - (frozen if task in again else 0) < 4000, task
    for record in result.rounds:
        assert all(0 < each.bytes_received - trained < 4000 for each in record.workers)
    (server, *_) = sys.modules["pretrained"].BUILT
    assert torch.equal(result.model[1].weight, server[1].weight)  # type: ignore[index]


class KilledError(BaseException):
    """Ends a server in the middle; an exception of a listener would only end the listening."""


def test_runs_of_one_command_go_on_together_in_their_order_with_the_same_workers(
    site: Site, free_port: int
) -> None:
    """Whatever the order in which they are named."""

    def kill_in_the_second_round(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.round == 2 and not killed:
            killed.append(event)
            raise KilledError

    killed: list[Event] = []
    site.whenever(kill_in_the_second_round)
    worker = site.worker(0)
    configs = [site.settings(strategy=s, rounds=2, workers=1) for s in ("fedavg", "adaptcl")]
    with pytest.raises(KilledError):
        site.serve(*configs, listen=f"127.0.0.1:{free_port}")  # where the worker finds the next
    paths = [site.folder / "run" / name for name in ("adaptcl", "fedavg")]
    first, second = serve_again(paths, site.listeners, site.hear, site.clock)
    assert (first.summary.strategy, second.summary.strategy) == ("fedavg", "adaptcl")
    for result, config in zip((first, second), configs, strict=True):
        assert_same_model(result, site.undisturbed(config))
    worker.join()
    assert site.said_by[0].count("the run is over") == 1
    assert site.said_by[0][-1] == "the run is over"


def test_ctrl_c_leaves_no_process_port_or_file_and_says_how_to_go_on(
    site: Site, free_port: int
) -> None:
    server = site.start_server(free_port, strategy="fedavg,adaptcl", rounds=10**6, workers=1)
    worker = site.start_worker(0, free_port)
    site.wait_until(server, "round 1/1000000")
    before = {path.name for path in site.folder.iterdir()}
    worker.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGINT)
    assert (site.ended(worker), site.ended(server)) == (130, 130)
    assert "stopped; `adaptcl resume run/fedavg run/adaptcl` goes on." in site.said(server)
    assert {path.name for path in site.folder.iterdir()} == before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", free_port))


def test_when_a_run_fails_every_worker_hears_why(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(session: Session, *_: object) -> None:
        list(session.connect().open(None))  # waits for both
        raise DivergedError("Worker 1 diverged in round 1.")

    monkeypatch.setattr(network_session, "run_session", diverge)
    workers = [site.worker(0), site.worker(1)]
    with pytest.raises(DivergedError):
        site.serve(site.settings())
    for number, worker in enumerate(workers):
        worker.join()
        assert site.said_by[number][-1] == (
            "The server has dismissed this worker: Worker 1 diverged in round 1."
        )


# Workers that lie ------------------------------------------------------------------------------


def wrong_shape(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    tensors = {**frame.tensors, "payload:classifier.bias": torch.zeros(9)}
    return dataclasses.replace(frame, tensors=tensors).to_bytes()


def infinite_loss(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "loss": float("inf")}).to_bytes()


def noise(content: bytes) -> bytes:
    return b"\xff" * 1000


def code(content: bytes) -> bytes:
    return b"cos\nsystem\n(S'touch /tmp/owned'\ntR."


def test_answers_that_cannot_be_used_change_nothing_but_the_log(site: Site) -> None:
    site.ask_again_at_once()
    lies = [wrong_shape, noise, honestly, infinite_loss, code, honestly]
    site.worker(0)
    site.worker(1, lies)
    chosen = site.settings(strategy="fedavg", rounds=8)
    (result,) = site.serve(chosen)
    said = "\n".join(each.message for each in site.events if isinstance(each, Warned))
    for word in ("must be [10]", "lower learning_rate", "cannot be read"):
        assert word in said
    assert said.count("Worker 1's answer was not used") == 4
    assert {each.reason for each in site.of(WorkerLost, 1)} == {"its answer could not be used"}
    assert not site.of(WorkerLost, 0)
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.05


def test_a_worker_that_changes_its_weight_reads_why_it_must_not(site: Site) -> None:
    def twice_the_samples(content: bytes) -> bytes:
        frame = Frame.from_bytes(content)
        samples = 2 * frame.header["samples"]
        return dataclasses.replace(frame, header={**frame.header, "samples": samples}).to_bytes()

    def restart() -> None:
        site.wait_for_server()
        site.worker(1, [honestly, twice_the_samples]).join()
        site.worker(1)

    site.worker(0, [honestly, site.after(lambda: back(site, 1))])
    threading.Thread(target=restart, daemon=True).start()
    chosen = site.settings(strategy="fedavg")
    (result,) = site.serve(chosen)
    sentence = r"The server has dismissed this worker: worker 1 has (\d+) samples, but it had (\d+)"
    found = re.search(sentence, "\n".join(site.said_by[1]))
    assert found is not None
    assert int(found[1]) == 2 * int(found[2])
    assert_same_model(result, site.undisturbed(chosen))
