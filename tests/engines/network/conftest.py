"""A server and workers for tests: in threads where that will do, as processes where not."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptcl.config.config import Config, configure
from adaptcl.errors import AdaptCLError
from adaptcl.events import Event, WorkerLost
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.session import run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import load_workload
from adaptcl.training.objectives.objective import find_objective

if importlib.util.find_spec("flwr"):  # Without it every test module here skips itself.
    from adaptcl.engines.network.keys import make_keys, worker_keys
    from adaptcl.engines.network.server.fleet import Fleet, Replied
    from adaptcl.engines.network.worker.local_data import LocalData
    from adaptcl.engines.network.worker.node import Incoming, Node
    from adaptcl.engines.network.worker.worker_process import ServerConnection, WorkerProcess
    from adaptcl.runs.files.run_files import NetworkFile
    from adaptcl.runs.network.session import serve
    from adaptcl.runs.network.worker import OwnerChoices, describe, prepare

STUCK = Path(__file__).with_name("stuck_worker.py")

LONG = 300.0
"""Seconds after which something will never happen; no test that passes waits for them to end."""

Spoil = Callable[[bytes], bytes]
"""What a worker makes of an answer before sending it."""

SMALL: dict[str, Any] = {
    "model": "small",
    "data": "digits",
    "samples": 300,
    "workers": 2,
    "rounds": 3,
    "epochs": 1.0,
    "batch_size": 32,
    "learning_rate": 0.05,
    "strength": 0.5,
    "pruning_interval": 2,
    "seed": 3,
}
"""A job of a second or two."""


class Relay:
    """Passes connections on to a port and counts them and their bytes, TLS and all.

    While it is cut, bytes wait, as on a line that is down. To the port it carries no more than
    `upward` bytes a second, over all connections together.
    """

    def __init__(self, port: int, upward: float = math.inf) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connections = 0
        self.carried = 0
        self.cut = threading.Event()
        self._upward = upward
        self._free_at = 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                self.connections += 1
                there = socket.create_connection(("127.0.0.1", self._to))
                for one, other, rate in ((here, there, self._upward), (there, here, math.inf)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(
                        target=self._pass_on, args=(one, other, rate), daemon=True
                    ).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, rate: float) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(2**16 if math.isinf(rate) else 2**12):
                while self.cut.is_set():
                    time.sleep(0.05)
                self._take_time(len(content) / rate)
                self.carried += len(content)
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)

    def _take_time(self, seconds: float) -> None:
        if seconds > 0:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + seconds
                wait = self._free_at - time.monotonic()
            time.sleep(max(0.0, wait))

    def close(self) -> None:
        self._listening.close()


class Clock:
    """The time, and as much later as a test says."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class Site:
    """One server and its workers, all on this machine."""

    def __init__(self, folder: Path, workers: int = 3) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        make_keys(self.keys, workers, ["localhost", "127.0.0.1"])
        self.clock = Clock()
        """The server's, where it runs in this process."""
        self.events: list[Event] = []
        self.said_by: dict[int, list[str]] = {}
        self.address = ""
        self.listeners: list[Callable[[Event], None]] = [self.events.append]
        self._listening = threading.Event()
        self._processes: list[subprocess.Popen[str]] = []
        self._relays: list[Relay] = []

    def relay(self, port: int, upward: float = math.inf) -> Relay:
        """A line to a port, on which bytes are counted and can be held up."""
        self._relays.append(Relay(port, upward))
        return self._relays[-1]

    def settings(self, **others: Any) -> Config:
        return configure({**SMALL, **others})

    def undisturbed(self, chosen: Config) -> FinishedRun:
        """What comes of a run in which nothing goes wrong."""
        return run_session(simulated_session(chosen, load_workload(chosen.job)))

    # What happens ------------------------------------------------------------------------------

    def whenever(self, listener: Callable[[Event], None]) -> None:
        """Call a function of each event, in the server's thread and before the run goes on."""
        self.listeners.append(listener)

    def of(self, kind: type[Any], worker: int) -> list[Any]:
        """The events of one kind that are about one worker."""
        return [each for each in self.events if isinstance(each, kind) and each.worker == worker]

    def wait_for(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + LONG
        while not condition():
            assert time.monotonic() < until, self.events
            time.sleep(0.02)

    def ask_again_at_once(self) -> None:
        """Let no time pass between the tries of a worker that fails."""

        def skip_the_pause(event: Event) -> None:
            if isinstance(event, WorkerLost):
                self.clock.advance(60)

        self.whenever(skip_the_pause)

    def wait_for_server(self) -> None:
        assert self._listening.wait(LONG)

    def after(self, condition: Callable[[], object]) -> Spoil:
        """An honest answer that waits for something."""

        def hold(content: bytes) -> bytes:
            self.wait_for(condition)
            return content

        return hold

    # In threads --------------------------------------------------------------------------------

    def serve(
        self,
        *configs: Config,
        patience: float = 1e12,
        listen: str = "127.0.0.1:0",
        least_workers: int = 0,
    ) -> list[FinishedRun]:
        """Run the server in this thread."""
        base = self.folder / "run"
        folders = [base / c.job.strategy if len(configs) > 1 else base for c in configs]
        network_file = NetworkFile(
            "", listen, str(self.keys), patience, least_workers=least_workers
        )
        return serve(configs, folders, network_file, self.listeners, self.hear, self.clock)

    def worker(
        self,
        number: int,
        answers: Sequence[Spoil] = (),
        *,
        at_once: bool = False,
        model: str = "",
        data: str = "digits",
        objective: str = "classification",
        dealt: bool = True,
        through: int | None = None,
        silence: float = 3600.0,
    ) -> threading.Thread:
        """Run a worker in a thread of its own, once the server of this process listens; `through`
        another port, if one is given. Its first answers are what `answers` make of them."""

        def work() -> None:
            if not at_once:
                self.wait_for_server()
            local = LocalData.named(data, targets=find_objective(objective).targets)
            owner = OwnerChoices(data, "", model, "cpu", dealt, objective=objective)
            process = _Scripted(
                self.connection(number, through=through, silence=silence),
                lambda invitation: prepare(owner, local, invitation),
                lambda question: describe(owner, local, question),
                self.folder / f"memory-{number}",
                self.said_by.setdefault(number, []).append,
            )
            process.answers = iter(answers)
            try:
                process.run()
            except SystemExit:  # How a test switches a machine off.
                pass
            except AdaptCLError as error:  # As it is too where a test ends without its workers.
                self.said_by[number].append(str(error))

        thread = threading.Thread(target=work, name=f"worker {number}", daemon=True)
        thread.start()
        return thread

    def connection(
        self, number: int, *, through: int | None = None, silence: float = 3600.0
    ) -> ServerConnection:
        keys = worker_keys(self.keys / f"worker-{number}")
        address = self.address if through is None else f"localhost:{through}"
        return ServerConnection(address, keys, patience=LONG, silence=silence)

    def hear(self, line: str) -> None:
        """What the server says when it listens."""
        if found := re.search(r"^listening .*:(\d+) for", line):
            self.address = f"localhost:{found[1]}"
            self._listening.set()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    # As processes ------------------------------------------------------------------------------

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start the command line; what it prints goes into one file for each process."""
        return self._start("-m", "adaptcl", *arguments)

    def _start(self, *command: str | Path) -> subprocess.Popen[str]:
        with (self.folder / f"log-{len(self._processes)}.txt").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
                cwd=self.folder,
            )
        self._processes.append(process)
        return process

    def start_server(self, port: int, out: str = "run", **others: Any) -> subprocess.Popen[str]:
        values = {**SMALL, **others}
        flags = [f for k, v in values.items() for f in (f"--{k.replace('_', '-')}", str(v))]
        place = ["--listen", f"127.0.0.1:{port}", "--tls", str(self.keys), "--out", out]
        return self.start("server", *flags, *place)

    def start_worker(self, number: int, port: int) -> subprocess.Popen[str]:
        return self.start(*self._worker_command(number, port), "--silence", "3600")

    def start_stuck_worker(self, number: int, port: int, task: int) -> subprocess.Popen[str]:
        """A worker that never comes to the end of one of its tasks, and says when it is there."""
        command = self._worker_command(number, port)
        return self._start(STUCK, str(task), *command, "--silence", "4")

    def _worker_command(self, number: int, port: int) -> list[str | Path]:
        return [
            *("worker", "--server", f"localhost:{port}", "--tls", self.keys / f"worker-{number}"),
            *("--data", "digits", "--deal", "--memory", f"memory-{number}"),
        ]

    def said(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"log-{self._processes.index(process)}.txt").read_text()

    def wait_until(self, process: subprocess.Popen[str], text: str) -> None:
        """Wait until a process has said something."""
        self.wait_for(lambda: text in self.said(process) or process.poll() is not None)
        assert text in self.said(process), self.said(process)

    def received(self, worker: Node) -> Incoming:
        """The next message that comes to a worker."""
        found: list[Incoming] = []

        def there() -> bool:
            found.extend(each for each in [worker.receive()] if each is not None)
            return bool(found)

        self.wait_for(there)
        return found[0]

    def reply(self, fleet: Fleet) -> Replied:
        """The next answer that comes to the server."""
        found: list[Replied] = []

        def there() -> bool:
            found.extend(each for each in fleet.wait(1) if isinstance(each, Replied))
            return bool(found)

        self.wait_for(there)
        return found[0]

    def ended(self, process: subprocess.Popen[str]) -> int:
        """Wait for a process to end; gives its exit status, and shows what it said."""
        try:
            status = process.wait(LONG)
        except subprocess.TimeoutExpired:
            # With faulthandler on, it says where each of its threads is.
            process.send_signal(signal.SIGABRT)
            process.wait(LONG)
            print(f"it did not end after:\n{self.said(process)}")
            raise
        print(f"exit status {status} after:\n{self.said(process)}")
        return status

    def stop(self) -> None:
        for relay in self._relays:
            relay.close()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


if importlib.util.find_spec("flwr"):

    class _Scripted(WorkerProcess):
        """A worker whose answers a test may hold up or spoil, one way after the other."""

        answers: Iterator[Spoil]

        def _take_part(self, node: Node, incoming: Incoming) -> None:
            before = self._participation
            super()._take_part(node, incoming)
            if self._participation is not None and self._participation is not before:
                honest = self._participation.make_update

                def answer(content: bytes) -> bytes:
                    spoil = next(self.answers, None)
                    return spoil(honest(content)) if spoil else honest(content)

                self._participation.make_update = answer  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    """Sums depend on how many cores share them, and a simulation gives each worker one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be missed sooner than Flower's least interval of heartbeats allows."""
    from flwr.superlink.servicer.fleet import fleet_handlers

    monkeypatch.setattr(fleet_handlers, "HEARTBEAT_MIN_INTERVAL", 1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path)
    yield place
    place.stop()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port
