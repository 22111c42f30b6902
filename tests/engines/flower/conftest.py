"""A server and workers for tests: in threads where that will do, as processes where not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptcl import config
from adaptcl.config import Config
from adaptcl.data import load
from adaptcl.errors import AdaptCLError
from adaptcl.events import Event
from adaptcl.run import Result

if importlib.util.find_spec("flwr"):  # Without it every test module here skips itself.
    from adaptcl.engines.flower.keys import make_keys, worker_keys
    from adaptcl.engines.flower.messages import Invitation
    from adaptcl.engines.flower.network_file import NetworkFile
    from adaptcl.engines.flower.serve import serve
    from adaptcl.engines.flower.trainer import Belongings, Connection, Trainer
    from adaptcl.engines.flower.work import Owned, prepare

LAUNCH = Path(__file__).with_name("launch.py")

SMALL: dict[str, Any] = {
    "model": "small",
    "data": "digits",
    "workers": 3,
    "rounds": 4,
    "epochs": 1.0,
    "batch_size": 32,
    "learning_rate": 0.05,
    "strength": 0.5,
    "pruning_interval": 2,
    "seed": 3,
}
"""A job of a few seconds."""


class Relay:
    """Passes connections on to a port and counts their bytes, TLS and all.

    While it is cut, bytes wait, as on a line that is down.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.carried = 0
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                for one, other in ((here, there), (there, here)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(2**16):
                while self.cut.is_set():
                    time.sleep(0.05)
                self.carried += len(content)
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()


class Site:
    """One server and its workers, all on this machine."""

    def __init__(self, folder: Path, workers: int = 3) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        make_keys(self.keys, workers, ["localhost", "127.0.0.1"])
        self.events: list[Event] = []
        self.address = ""
        self._listening = threading.Event()
        self._processes: list[subprocess.Popen[str]] = []
        self._relays: list[Relay] = []

    def relay(self, port: int) -> Relay:
        """A line to a port, on which bytes are counted and can be held up."""
        self._relays.append(Relay(port))
        return self._relays[-1]

    def settings(self, **others: Any) -> Config:
        return config.configure({**SMALL, **others})

    # In threads --------------------------------------------------------------------------------

    def serve(self, *configs: Config, out: str = "run", patience: float = 60.0) -> list[Result]:
        """Run the server in this thread."""
        base = self.folder / out
        folders = [base / c.job.strategy if len(configs) > 1 else base for c in configs]
        place = NetworkFile("", "127.0.0.1:0", str(self.keys), patience)
        return serve(configs, folders, place, [self.events.append], self._hear)

    def worker(
        self,
        number: int,
        prepared: Callable[[Invitation], Belongings] | None = None,
        trainer: type[Trainer] | None = None,
        *,
        at_once: bool = False,
        through: int | None = None,
    ) -> threading.Thread:
        """Run a worker in a thread of its own, once the server of this process listens; `through`
        another port, if one is given."""

        def work() -> None:
            assert at_once or self._listening.wait(30)
            data = load("digits", None)
            owned = Owned("digits", "", "", "cpu", dealt=True)
            with contextlib.suppress(AdaptCLError):  # A test may end without its workers.
                (trainer or Trainer)(
                    self.connection(number, through=through),
                    prepared or (lambda invitation: prepare(owned, data, invitation)),
                    self.folder / f"memory-{number}",
                    lambda _: None,
                ).run()

        thread = threading.Thread(target=work, name=f"worker {number}", daemon=True)
        thread.start()
        return thread

    def connection(self, number: int, *, through: int | None = None) -> Connection:
        keys = worker_keys(self.keys / f"worker-{number}")
        address = self.address if through is None else f"localhost:{through}"
        return Connection(address, keys, patience=30.0, silence=20.0)

    def _hear(self, line: str) -> None:
        found = re.search(r":(\d+) for", line)
        assert found
        self.address = f"localhost:{found[1]}"
        self._listening.set()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.05)

    def wait_for_server(self) -> None:
        assert self._listening.wait(30)

    # As processes ------------------------------------------------------------------------------

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start the command line; what it prints goes into one file for each process."""
        log = (self.folder / f"log-{len(self._processes)}.txt").open("w")
        process = subprocess.Popen(
            [sys.executable, str(LAUNCH), *map(str, arguments)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=self.folder,
        )
        log.close()
        self._processes.append(process)
        return process

    def start_server(self, port: int, out: str = "run", **others: Any) -> subprocess.Popen[str]:
        values = {**SMALL, **others}
        flags = [f for k, v in values.items() for f in (f"--{k.replace('_', '-')}", str(v))]
        place = ["--listen", f"127.0.0.1:{port}", "--tls", str(self.keys), "--out", out]
        return self.start("server", *flags, *place)

    def start_worker(self, number: int, port: int, *arguments: str) -> subprocess.Popen[str]:
        return self.start(
            *("worker", "--server", f"localhost:{port}", "--tls", self.keys / f"worker-{number}"),
            *("--data", "digits", "--deal", "--memory", f"memory-{number}"),
            *arguments,
        )

    def said(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"log-{self._processes.index(process)}.txt").read_text()

    def wait_until(self, process: subprocess.Popen[str], text: str, seconds: float = 60.0) -> None:
        """Wait until a process has said something."""
        until = time.monotonic() + seconds
        while text not in self.said(process):
            assert time.monotonic() < until, f"{text!r} is not in:\n{self.said(process)}"
            assert process.poll() is None or text in self.said(process), self.said(process)
            time.sleep(0.05)

    def stop(self) -> None:
        for relay in self._relays:
            relay.close()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    """Sums depend on how many cores share them, and a simulation gives each worker one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
