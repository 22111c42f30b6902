"""The commands `adaptcl server`, `adaptcl worker` and `adaptcl keys`.

Flower is an optional dependency, so modules that need it are imported in the functions.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from adaptcl.cli import doing, say, with_times
from adaptcl.cli.compare import picture_options, show_runs, start_page
from adaptcl.cli.job_commands import named_listeners, requested_runs, saying_how_to_resume
from adaptcl.errors import SettingError
from adaptcl.events import Event, Listener, RunStarted
from adaptcl.report.progress import Progress
from adaptcl.runs.files.run_files import NetworkFile
from adaptcl.runs.session import Track
from adaptcl.trackers import tracking

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^][\s:/@]+):(?P<port>[0-9]{1,5})")
"""An address that contains colons is in brackets."""


def resume_server(
    paths: Sequence[Path], track: Track, listeners: Sequence[Listener], changes: Mapping[str, Any]
) -> None:
    """Continue the unfinished runs of one server, in their order and with the same workers."""
    _need_flower()
    with doing("starting"):
        from adaptcl.runs.network.session import serve_again

    begun: list[RunStarted] = []

    def note_begin(event: Event) -> None:
        if isinstance(event, RunStarted):
            begun.append(event)

    with (
        with_times(),
        saying_how_to_resume(paths, (BaseException,), lambda: bool(begun)),
        Progress() as progress,
    ):
        heard: list[Listener] = [note_begin, progress, *listeners]
        serve_again(paths, heard, say, track=track, changes=changes)


def changes_of_network(options: argparse.Namespace) -> dict[str, Any]:
    """What `adaptcl resume` changes in the network file of a run."""
    tls = options.tls and str(Path(options.tls).resolve())
    values = {
        "listen": options.address,
        "tls": tls,
        "patience": options.patience,
        "least_workers": options.least_workers,
        "wait": options.wait,
    }
    return {name: value for name, value in values.items() if value is not None}


def serve_runs(options: argparse.Namespace) -> None:
    _need_flower()
    with doing("starting"):
        from adaptcl.runs.network.session import serve

    pictures = picture_options(options)
    track, listeners = tracking(options.track), named_listeners(options.listener)
    asked = requested_runs(options)
    for sentence in asked.ineffective:
        say(sentence)
    network_file = NetworkFile(
        run="",
        listen=options.listen,
        tls=str(Path(options.tls).resolve()),
        patience=options.patience,
        least_workers=options.least_workers or 0,
        wait=options.wait or 0.0,
    )
    start_page(asked.folders, options)
    with (
        with_times(),
        saying_how_to_resume(asked.folders, (BaseException,)),
        Progress() as progress,
    ):
        heard_by: list[Listener] = [progress, *listeners]
        serve(asked.configs, asked.folders, network_file, heard_by, say, track=track)
    show_runs(asked.folders, asked.base, pictures)


def work_for_server(options: argparse.Namespace) -> None:
    _need_flower()
    _check_address(options.server)
    with doing("starting"):
        from adaptcl.engines.network.keys import worker_keys
        from adaptcl.engines.network.worker.worker_process import ServerConnection
        from adaptcl.runs.network.worker import OwnerChoices, work

    keys = worker_keys(Path(options.tls))
    connection = ServerConnection(options.server, keys, options.patience, options.silence)
    owner = OwnerChoices(
        **{each.name: getattr(options, each.name) for each in fields(OwnerChoices)}
    )
    memory = Path(options.memory) if options.memory else _state_folder()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with with_times():
        work(owner, connection, memory, say)


def write_keys(options: argparse.Namespace) -> None:
    _need_flower()
    from adaptcl.engines.network.keys import make_keys, renew_key

    folder = Path(options.folder)
    if options.renew is not None:
        if options.workers is not None or options.host:
            raise SettingError("--renew makes one worker's key; leave --workers and --host out.")
        print(renew_key(folder, options.renew))
        return
    if options.workers is None or not options.host:
        raise SettingError("New keys need --workers N and --host HOST, the address of the server.")
    for made in make_keys(folder, options.workers, options.host):
        print(made)


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise SettingError("Working across a network needs Flower: pip install 'adaptcl[network]'.")


def _check_address(server: str) -> None:
    """Refuse an address without a valid port; without one, HTTPS would use 443."""
    found = _HOST_AND_PORT.fullmatch(server)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise SettingError(f"--server is {server!r}, but it must be HOST:PORT.")


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "adaptcl"
