"""`adaptcl server`: runs from beginning to end, with the workers of a network."""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptcl.codecs import codec_class
from adaptcl.config import Config, configure
from adaptcl.custom import note_custom_code
from adaptcl.data.samples import Inputs
from adaptcl.engines.network.invitation import fingerprint, outline
from adaptcl.engines.network.keys import server_keys
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.server.transport import Network, RunInvitation
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.pruning import custom_worker_orders
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.folder_reader import NETWORK_FILE, NetworkFile
from adaptcl.runs.result import Result
from adaptcl.runs.session import Session, check
from adaptcl.runs.workload import Workload, load_workload
from adaptcl.settings import declared
from adaptcl.strategies.adaptcl.speed_history import TYPICAL_NOISE

TOLD = (
    *("model", "fixed", "workers", "seed", "precision", "codec"),
    *("samples", "partition", "label_share", "concentration"),
)
"""The settings workers are told, beside those of the codec and a pruning order that only they can
compute and have to import; all others stay with the server."""

Say = Callable[[str], None]


def serve(
    configs: Sequence[Config],
    paths: Sequence[Path],
    place: NetworkFile,
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """Do one run after the other with the same workers, each in a new folder."""
    workload = load_workload(configs[0].job)
    for each in configs:
        check(each, workload)
    with _fleet(place, configs[0].job.workers, clock) as fleet, ExitStack() as stack:
        sessions = []
        job = uuid.uuid4().hex
        anchored = [each.with_absolute_paths() for each in configs]
        for turn, (each, path) in enumerate(zip(anchored, paths, strict=True)):
            named = replace(place, run=uuid.uuid4().hex, job=job, turn=turn)
            folder = RunFolder.create(path, each.to_toml(), {NETWORK_FILE: named.to_toml()})
            stack.callback(folder.close)
            sessions.append(_NetworkSession(each, workload, folder, listeners, named))
        return _run_all(sessions, fleet, say)


def serve_again(
    paths: Sequence[Path],
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """Go on with runs that one command began, in the order it had, where the server listened."""
    begun = sorted(
        ((NetworkFile.read(path), path) for path in paths), key=lambda each: each[0].turn
    )
    place = begun[0][0]
    configs = [_config(path) for _, path in begun]
    workload = load_workload(configs[0].job)
    with _fleet(place, configs[0].job.workers, clock) as fleet, ExitStack() as stack:
        sessions = []
        for (named, path), config in zip(begun, configs, strict=True):
            folder = RunFolder.open(path)
            stack.callback(folder.close)
            sessions.append(_NetworkSession(config, workload, folder, listeners, named))
        return _run_all(sessions, fleet, say)


def _config(path: Path) -> Config:
    return configure(tomllib.loads((path / "config.toml").read_text("utf-8")))


def _run_all(sessions: Sequence[_NetworkSession], fleet: Fleet, say: Say) -> list[Result]:
    host, port = fleet.address
    count = sessions[0].workers
    say(f"listening at {host}:{port} for {count} worker{'' if count == 1 else 's'}")
    # Who is connected when a run begins was seen to come in the run before.
    results = [session.run_with(fleet, fleet.connected) for session in sessions]
    sessions[-1].network.say_goodbye()
    return results


class _NetworkSession(Session):
    """A run's parts, put together around a fleet instead of a simulation."""

    network: Network

    def __init__(
        self,
        config: Config,
        workload: Workload,
        folder: RunFolder,
        listeners: Sequence[Listener],
        place: NetworkFile,
    ) -> None:
        super().__init__(config, workload, folder, listeners)
        self._place = place

    @property
    def workers(self) -> int:
        """How many workers take part."""
        return self._job.workers

    def run_with(self, fleet: Fleet, connected: set[int]) -> Result:
        """Train with a fleet, in which some workers are connected already."""
        job = self._job
        values = self._config.values()
        told = [*TOLD, *(each.name for each in declared(codec_class(job.codec).Settings))]
        # So that a worker can refuse to import it as it joins, not when it is first told to prune.
        told += ["pruning"] if custom_worker_orders(self._config.pruning) else []
        self.network = Network(
            self._strategy,
            job.workers,
            self._units,
            codec_class(job.codec)(self._config.codec),
            fleet,
            RunInvitation(
                self._place.run,
                fingerprint(self._workload.model, self._units),
                {name: _plain(values[name]) for name in told if values[name] is not None},
                Inputs.of(self._workload.test, self._workload.classes),
                outline(self._workload.model, self._units),
            ),
            judge=self._accuracy,
            listener=self._tell,
            patience=self._place.patience,
            connected=connected,
            first=self._place.turn == 0,
        )
        with note_custom_code(self._config.named_methods):
            return self.run()

    @property
    def time_noise(self) -> float:
        """What is assumed of a real clock."""
        return TYPICAL_NOISE

    def worker_labels(self) -> list[list[int]]:
        """None: workers have data of their own, which nobody else sees."""
        return []

    def engine(self) -> Network:
        """The engine that the session runs."""
        return self.network


def _fleet(place: NetworkFile, workers: int, clock: Callable[[], float] = time.monotonic) -> Fleet:
    return Fleet(server_keys(Path(place.tls), workers), *_address(place.listen), clock)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, so that what is sent and what is read are equal."""
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"--listen is {text!r}, but it must be ADDRESS:PORT.")
    return host.strip("[]"), int(port)
