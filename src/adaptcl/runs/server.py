"""`adaptcl server`: runs from beginning to end, with the workers of a network."""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptcl.codecs import codec_class
from adaptcl.codecs.codec import Codecs
from adaptcl.config import Config, JobSettings, configure
from adaptcl.custom import note_custom_code
from adaptcl.data.description import BY_WORKERS, Inputs
from adaptcl.engines.network.invitation import Invitation, fingerprint, objective_in_words, outline
from adaptcl.engines.network.keys import server_keys
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.server.introduction import agree
from adaptcl.engines.network.server.transport import NetworkTransport
from adaptcl.engines.network.shared_units import units_to_json
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.pruning import custom_worker_orders
from adaptcl.runs.assembly import checked_strategy
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import CONFIG, NETWORK_FILE, NetworkFile, read_described
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.session import Session, run_session
from adaptcl.runs.workload import Workload, refuse_without_tests, server_workload
from adaptcl.settings import declared, is_custom
from adaptcl.strategies import Strategy
from adaptcl.training.update_time import TYPICAL_NOISE
from adaptcl.training.wire.frozen import digest, frozen_tensors

SHARED_SETTINGS = (
    *("model", "fixed", "workers", "seed", "precision", "codec", "codec_down"),
    *("samples", "partition", "label_share", "concentration", "holdout", "evaluate_every"),
    *("main_metric", "better"),
)
"""Settings that the server sends to workers, beside those of the codec and the names of custom code
that workers run. All others stay with the server."""

Say = Callable[[str], None]
Track = Callable[[Path, Config], AbstractContextManager[Sequence[Listener]]]
"""Makes the trackers of a run, given its folder and its settings."""


@dataclass(frozen=True)
class _CheckedRun:
    """A run of which nothing is wrong; no folder is made and no port is open yet."""

    config: Config
    strategy: Strategy
    codecs: Codecs
    shared: dict[str, object]  # the settings that workers get


def serve(
    configs: Sequence[Config],
    paths: Sequence[Path],
    network_file: NetworkFile,
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    track: Track = lambda *_: nullcontext(()),
) -> list[FinishedRun]:
    """Do one run after the other with the same workers, each in a new folder."""
    with ExitStack() as stack:
        listen = partial(_listening, stack, network_file, configs[0].job.workers, clock, say)
        fleet, workload = _gathered(configs[0].job, listen, say)
        runs = [_check(config.with_absolute_paths(), workload) for config in configs]
        fleet = fleet or listen()
        job = uuid.uuid4().hex
        network_files, folders = [], []
        for turn, (run, path) in enumerate(zip(runs, paths, strict=True)):
            network_files.append(replace(network_file, run=uuid.uuid4().hex, job=job, turn=turn))
            files = {NETWORK_FILE: network_files[-1].to_toml()}
            folders.append(RunFolder.create(path, run.config.to_toml(), files))
            stack.callback(folders[-1].close)
        return _run_all(runs, workload, fleet, network_files, folders, listeners, track)


def serve_again(
    paths: Sequence[Path],
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    track: Track = lambda *_: nullcontext(()),
) -> list[FinishedRun]:
    """Go on with runs that one command began, in the order it had, where the server listened."""
    begun = sorted(
        ((NetworkFile.read(path), path) for path in paths), key=lambda each: each[0].turn
    )
    network_files = [each for each, _ in begun]
    configs = [_read_config(path) for _, path in begun]
    with ExitStack() as stack:
        listen = partial(_listening, stack, network_files[0], configs[0].job.workers, clock, say)
        known = next(filter(None, (read_described(path) for _, path in begun)), None)
        fleet, workload = _gathered(configs[0].job, listen, say, known)
        runs = [_check(config, workload) for config in configs]
        fleet = fleet or listen()
        folders = []
        for _, path in begun:
            folders.append(RunFolder.open(path))
            stack.callback(folders[-1].close)
        return _run_all(runs, workload, fleet, network_files, folders, listeners, track)


def _gathered(
    job: JobSettings, listen: Callable[[], Fleet], say: Say, known: Inputs | None = None
) -> tuple[Fleet | None, Workload]:
    """The server's model and data. If workers have to describe theirs first, the port is open."""
    if job.data != BY_WORKERS:
        return None, server_workload(job)
    refuse_without_tests(job)
    if known is not None:
        return None, server_workload(job, known)
    fleet = listen()
    return fleet, server_workload(job, agree(fleet, job.workers, say))


def _listening(
    stack: ExitStack, network_file: NetworkFile, workers: int, clock: Callable[[], float], say: Say
) -> Fleet:
    keys = server_keys(Path(network_file.tls), workers)
    fleet = stack.enter_context(Fleet(keys, *_address(network_file.listen), clock))
    host, port = fleet.address
    say(f"listening at {host}:{port} for {workers} worker{'' if workers == 1 else 's'}")
    return fleet


def _read_config(path: Path) -> Config:
    return configure(tomllib.loads((path / CONFIG).read_text("utf-8")))


def _check(config: Config, workload: Workload) -> _CheckedRun:
    """The parts of a run; an error if anything about them cannot work."""
    with note_custom_code(config.named_methods):
        # The spread of times on real machines is not known before it is measured.
        strategy = checked_strategy(config, workload, TYPICAL_NOISE)
        kind = codec_class(config.job.codec)
        names = [*SHARED_SETTINGS, *(each.name for each in declared(kind.Settings))]
        values = config.values()
        # So that a worker refuses to import it when it joins, not when it first has to use it.
        names += ["pruning"] if custom_worker_orders(config.pruning) else []
        names += [name for name in ("optimizer", "schedule") if is_custom(values[name])]
        shared = {name: _as_json(values[name]) for name in names if values[name] is not None}
        return _CheckedRun(config, strategy, config.codecs, shared)


def _run_all(
    runs: Sequence[_CheckedRun],
    workload: Workload,
    fleet: Fleet,
    network_files: Sequence[NetworkFile],
    folders: Sequence[RunFolder],
    listeners: Sequence[Listener],
    track: Track,
) -> list[FinishedRun]:
    networks = [
        _network(run, workload, fleet, network_file)
        for run, network_file in zip(runs, network_files, strict=True)
    ]
    results = []
    for run, network, folder in zip(runs, networks, folders, strict=True):
        with track(folder.path, run.config) as tracking:
            session = _session(run, workload, network)
            results.append(run_session(session, folder, [*listeners, *tracking]))
    networks[-1].say_goodbye()
    return results


def _session(run: _CheckedRun, workload: Workload, network: NetworkTransport) -> Session:
    """Without labels by worker: nobody else sees a worker's data."""
    return Session(run.config, workload, run.strategy, lambda: network)


def _network(
    run: _CheckedRun, workload: Workload, fleet: Fleet, network_file: NetworkFile
) -> NetworkTransport:
    frozen = frozen_tensors(workload.model.state_dict(), workload.units)
    invitation = Invitation(
        network_file.run,
        0,
        fingerprint(workload.model, workload.units),
        run.shared,
        workload.described_inputs,
        outline(workload.model, workload.units),
        digest(frozen) if frozen else "",
        objective_in_words(run.config.job.objective, workload.objective),
        units_to_json(workload.units),
    )
    return NetworkTransport(
        run.config.job.workers,
        workload.units,
        run.codecs,
        fleet,
        invitation,
        metrics=workload.objective.tested,
        patience=network_file.patience,
        waits_for_all=network_file.turn == 0,
    )


def _as_json(value: Any) -> Any:
    """A value as JSON gives it back, so that what is sent and what is read are equal."""
    return [_as_json(each) for each in value] if isinstance(value, tuple) else value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"--listen is {text!r}, but it must be ADDRESS:PORT.")
    return host.strip("[]"), int(port)
