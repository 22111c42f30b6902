"""`adaptcl server`: runs from beginning to end, with the workers of a network."""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaptcl import models
from adaptcl.codecs import codec_class
from adaptcl.config.config import Config, configure
from adaptcl.custom import note_custom_code
from adaptcl.data.description import BY_WORKERS, SampleForm
from adaptcl.engines.network.invitation import (
    Invitation,
    Question,
    fingerprint,
    objective_in_words,
    outline,
)
from adaptcl.engines.network.keys import expiry_warning, server_keys
from adaptcl.engines.network.server.attendance import Quorum
from adaptcl.engines.network.server.farewell import GOODBYE_S, dismiss_all
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.server.introduction import agree
from adaptcl.engines.network.server.network_transport import NetworkTransport
from adaptcl.engines.network.trial import trial_outputs
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.pruning import custom_worker_orders
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import CONFIG, NETWORK_FILE, NetworkFile, read_described
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.session import Session, Track, checked_strategy, run_session
from adaptcl.runs.workload import (
    Workload,
    named_objective,
    refuse_without_tests,
    server_workload,
)
from adaptcl.settings import declared, is_custom
from adaptcl.training.update_time import TYPICAL_NOISE
from adaptcl.training.wire import digest, frozen_tensors
from adaptcl.units.as_json import units_to_json

SHARED_SETTINGS = (
    *("model", "fixed", "workers", "seed", "precision", "codec", "codec_down"),
    *("samples", "partition", "label_share", "concentration", "holdout", "evaluate_every"),
    *("main_metric", "better"),
)
"""Settings that the server sends to workers, beside those of the codec and the names of custom code
that workers run. All others stay with the server."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Run:
    """One run of a server's job."""

    config: Config
    path: Path
    file: NetworkFile

    def create_folder(self) -> RunFolder:
        files = {NETWORK_FILE: self.file.to_toml()}
        return RunFolder.create(self.path, self.config.to_toml(), files, is_private=True)

    def open_folder(self) -> RunFolder:
        return RunFolder.open(self.path)


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
    file = replace(network_file, job=uuid.uuid4().hex)
    runs = [
        _Run(config.with_absolute_paths(), path, replace(file, run=uuid.uuid4().hex, turn=turn))
        for turn, (config, path) in enumerate(zip(configs, paths, strict=True))
    ]
    return _serve(runs, None, _Run.create_folder, listeners, say, clock, track)


def serve_again(
    paths: Sequence[Path],
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    track: Track = lambda *_: nullcontext(()),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> list[FinishedRun]:
    """Go on with runs that one command began, in the order it had, where the server listened.

    `changes` are values of the network file that are others from now on.
    """
    files = {path: replace(NetworkFile.read(path), **changes) for path in paths}
    begun = sorted(files, key=lambda path: files[path].turn)
    runs = [
        _Run(configure(tomllib.loads((path / CONFIG).read_text("utf-8"))), path, files[path])
        for path in begun
    ]
    known = next(filter(None, map(read_described, begun)), None)
    with ExitStack() as stack:
        # Before the port: if these runs are going on already, that is what must be said.
        opened = {run.path: stack.enter_context(closing(run.open_folder())) for run in runs}

        def with_changes(run: _Run) -> RunFolder:
            """Its folder, once the server listens: an address that cannot be used is not kept."""
            opened[run.path].change(NETWORK_FILE, run.file.to_toml())
            return opened[run.path]

        return _serve(runs, known, with_changes, listeners, say, clock, track)


def _serve(
    runs: Sequence[_Run],
    known: SampleForm | None,
    folder_of: Callable[[_Run], RunFolder],
    listeners: Sequence[Listener],
    say: Say,
    clock: Callable[[], float],
    track: Track,
) -> list[FinishedRun]:
    """Do all runs of a job. They are checked before the port is open and any folder is made."""
    job, file = runs[0].config.job, runs[0].file
    if file.least_workers > job.workers:
        raise SettingError(
            f"--least-workers is {file.least_workers}, but the run has {job.workers} workers; give "
            "that number or a smaller one."
        )
    sessions: list[tuple[Session, NetworkTransport]] = []
    with ExitStack() as stack:

        def listen() -> Fleet:
            keys = server_keys(Path(file.tls), job.workers)
            if warning := expiry_warning(keys.certificate.read_bytes()):
                say(warning)
            fleet = stack.enter_context(Fleet(keys, *_address(file.listen), clock))
            stack.enter_context(_dismissing_all(fleet, sessions))
            host, port = fleet.address
            say(f"listening at {host}:{port} for {job.workers} worker{'s' * (job.workers != 1)}")
            return fleet

        fleet, workload = _gathered(runs, listen, say, known)
        has_waited = fleet is not None
        checked = [_checked(run, workload, has_waited=has_waited) for run in runs]
        fleet = fleet or listen()
        folders = [stack.enter_context(closing(folder_of(run))) for run in runs]
        sessions += [session_on(fleet) for session_on in checked]
        results = []
        for (session, _), folder in zip(sessions, folders, strict=True):
            with track(folder.path, session.config) as tracking:
                results.append(run_session(session, folder, [*listeners, *tracking]))
        sessions[-1][1].say_goodbye()
        return results


@contextmanager
def _dismissing_all(
    fleet: Fleet, sessions: Sequence[tuple[Session, NetworkTransport]]
) -> Iterator[None]:
    """If the runs cannot go on, all connected workers hear why, and do not wait for this server.

    After Ctrl-C they wait: whoever interrupts a run may resume it.
    """
    try:
        yield
    except Exception as error:
        seconds = max((network.goodbye_s for _, network in sessions), default=GOODBYE_S)
        dismiss_all(fleet, error, seconds)
        raise


def _gathered(
    runs: Sequence[_Run], listen: Callable[[], Fleet], say: Say, known: SampleForm | None
) -> tuple[Fleet | None, Workload]:
    """The server's model and data. If workers have to describe theirs first, the port is open."""
    job = runs[0].config.job
    if job.data != BY_WORKERS:
        say(f"reading {job.data} and tracing {job.model}")
        return None, server_workload(job)
    refuse_without_tests(job)
    if known is not None:
        say(f"tracing {job.model}")
        return None, server_workload(job, known)
    question = _question(runs)
    fleet = listen()
    known = agree(fleet, job.workers, question, _quorum(runs[0]), say)
    say(f"tracing {job.model}")
    return fleet, server_workload(job, known)


def _quorum(run: _Run, *, has_waited: bool = False) -> Quorum:
    """How many workers a run needs. The first of a job waits for the others too; later ones have
    workers that were waited for before."""
    file, least = run.file, run.file.least_workers or 1
    if file.turn > 0:
        return Quorum(least, least=least)
    begin = file.least_workers or run.config.job.workers
    seconds = None if has_waited else file.wait or file.patience
    return Quorum(begin, seconds, least, had_time=has_waited)


def _question(runs: Sequence[_Run]) -> Question:
    """What workers hear when they are asked for their data; an error if the server's own model or
    objective cannot be found, which must not wait until all workers are there."""
    job = runs[0].config.job
    models.find(job.model)
    objective = objective_in_words(job.objective, named_objective(job))
    return Question(objective, tuple(_shared_settings(run.config) for run in runs))


def _checked(
    run: _Run, workload: Workload, *, has_waited: bool
) -> Callable[[Fleet], tuple[Session, NetworkTransport]]:
    """Makes the session of a run; an error if anything about the run cannot work. `has_waited` says
    that workers which have not come yet have had their time, because all had to tell of their data.
    """
    config, units = run.config, workload.units
    with note_custom_code(config.named_methods):
        # The spread of times on real machines is not known before it is measured.
        strategy = checked_strategy(config, workload, TYPICAL_NOISE)
        shared, codecs = _shared_settings(config), config.codecs
    frozen = frozen_tensors(workload.model.state_dict(), units)
    invitation = Invitation(
        run=run.file.run,
        worker=0,
        fingerprint=fingerprint(workload.model, units),
        settings=shared,
        inputs=workload.described_inputs,
        outline=outline(workload.model, units),
        frozen=digest(frozen) if frozen else "",
        objective=objective_in_words(config.job.objective, workload.objective),
        units=units_to_json(units),
        trial=trial_outputs(workload.model, workload.described_inputs),
    )

    quorum = _quorum(run, has_waited=has_waited)

    def session_on(fleet: Fleet) -> tuple[Session, NetworkTransport]:
        network = NetworkTransport(
            config.job.workers,
            units,
            codecs,
            fleet,
            invitation,
            metrics=workload.objective.tested,
            patience=run.file.patience,
            quorum=quorum,
        )
        # Without labels by worker: nobody else sees a worker's data.
        return Session(config, workload, strategy, lambda: network), network

    return session_on


def _shared_settings(config: Config) -> dict[str, object]:
    """The settings that workers get."""
    kind, values = codec_class(config.job.codec), config.values()
    names = [*SHARED_SETTINGS, *(each.name for each in declared(kind.Settings))]
    # So that a worker refuses to import it when it joins, not when it first has to use it.
    names += ["pruning"] if custom_worker_orders(config.pruning) else []
    names += [name for name in ("optimizer", "schedule") if is_custom(values[name])]
    return {name: _as_json(values[name]) for name in names if values[name] is not None}


def _as_json(value: Any) -> Any:
    """A value as JSON gives it back, so that what is sent and what is read are equal."""
    return [_as_json(each) for each in value] if isinstance(value, tuple) else value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"The server's address is {text!r}, but it must be ADDRESS:PORT.")
    return host.strip("[]"), int(port)
