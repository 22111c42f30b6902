"""The commands `adaptcl server`, `adaptcl worker` and `adaptcl keys`.

Flower is an optional dependency, so nothing that needs it is imported before it is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from adaptcl import report
from adaptcl.cli import flags
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.errors import SettingError
from adaptcl.runs.folder_reader import NetworkFile, is_network_run
from adaptcl.settings import declared

PORT = 9092

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^][\s:/@]+):(?P<port>[0-9]{1,5})")
"""An address with colons of its own stands in brackets."""

__all__ = ["add_commands", "is_network_run", "resume"]

Present = Callable[[Sequence[Path], Path], None]


def add_commands(commands: Any, present: Present) -> None:
    """Hang the three commands into a command line; `present` shows finished runs."""
    server = commands.add_parser(
        "server",
        help="run a job with workers on other machines",
        description="Run a job with workers on other machines.",
        usage="adaptcl server [FILE] --tls DIR [--out DIR] [--preset NAME] [--SETTING X …]",
    )
    server.set_defaults(command=lambda options: _server(options, present))
    server.add_argument("--out", help="folder for the run (default: runs/DATE-TIME)")
    server.add_argument("--tls", required=True, help="the server's folder of `adaptcl keys`")
    server.add_argument(
        "--listen", default=f"0.0.0.0:{PORT}", help="address and port [%(default)s]"
    )
    server.add_argument(
        "--patience",
        type=flags.seconds,
        default=3600.0,
        help="seconds a worker may take for one task before the run goes on without it [3600]",
    )
    # How long things take is measured, and each worker is a process of its own.
    flags.add_settings(
        server, without=["threads", *(each.name for each in declared(EnvironmentSettings))]
    )

    worker = commands.add_parser("worker", help="work for a server, with data of this machine")
    worker.set_defaults(command=_worker)
    worker.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server is")
    worker.add_argument("--tls", required=True, help="this worker's folder of `adaptcl keys`")
    worker.add_argument(
        "--data",
        required=True,
        help="this worker's data, named as for `run`; of a folder only train/CLASS is used",
    )
    worker.add_argument("--data-dir", default="", help="the folder that holds the data's files")
    worker.add_argument(
        "--model", default="", help="allow this package.module:factory, if the server names it"
    )
    worker.add_argument(
        "--codec", default="", help="allow this package.module:Class, if the server names it"
    )
    worker.add_argument(
        "--pruning", default="", help="allow this package.module:Class, if the server names it"
    )
    worker.add_argument("--device", default="cpu", help="where to train, as PyTorch names it [cpu]")
    worker.add_argument(
        "--threads",
        type=flags.whole_number,
        metavar="N",
        help="cores to train on (default: all); give workers that share a machine their share",
    )
    worker.add_argument(
        "--deal",
        action="store_true",
        help="take only this worker's part of the data, as a simulation deals it",
    )
    worker.add_argument("--memory", help="folder for what must survive a restart")
    worker.add_argument(
        "--patience",
        type=flags.seconds,
        default=600.0,
        help="seconds to wait for a server that cannot be reached [600]",
    )
    worker.add_argument(
        "--silence",
        type=_silence,
        default=30.0,
        help="seconds, from 20 to 3600, without a sign of life after which the server gives this "
        "worker up [30]",
    )

    keys = commands.add_parser("keys", help="make certificate and keys for a server and workers")
    keys.set_defaults(command=_keys)
    keys.add_argument("folder", help="a new folder")
    keys.add_argument("--workers", type=int, required=True, help="how many workers there will be")
    keys.add_argument(
        "--host",
        action="append",
        required=True,
        help="name or address by which workers reach the server; may be given several times",
    )


def resume(paths: Sequence[Path]) -> None:
    """Go on with unfinished runs that one command of a server began, where it listened before: one
    after the other, in the order they had, with the same workers."""
    _need_flower()
    from adaptcl.runs.server import serve_again

    with _telling_how_to_go_on(paths), report.Progress() as progress:
        serve_again(paths, [progress], _say)


def _server(options: argparse.Namespace, present: Present) -> None:
    _need_flower()
    from adaptcl.runs.server import serve

    asked = flags.asked(options)
    for sentence in asked.idle:
        _say(sentence)
    place = NetworkFile("", options.listen, str(Path(options.tls).resolve()), options.patience)
    with _telling_how_to_go_on(asked.folders), report.Progress() as progress:
        serve(asked.configs, asked.folders, place, [progress], _say)
    present(asked.folders, asked.figures)


@contextmanager
def _telling_how_to_go_on(folders: Sequence[Path]) -> Iterator[None]:
    """Whatever ends a server before its runs are over, say how to go on with them."""
    try:
        yield
    except BaseException:
        begun = [path for path in folders if is_network_run(path)]
        left = [str(path) for path in begun if not (path / "summary.json").exists()]
        if left:
            _say(f"stopped; `adaptcl resume {shlex.join(left)}` goes on.")
        raise


def _worker(options: argparse.Namespace) -> None:
    _need_flower()
    _refuse_without_port(options.server)
    from adaptcl.engines.network.keys import worker_keys
    from adaptcl.engines.network.worker.worker_process import ServerConnection
    from adaptcl.runs.worker import Owned, work

    keys = worker_keys(Path(options.tls))
    connection = ServerConnection(options.server, keys, options.patience, options.silence)
    owned = Owned(
        options.data,
        options.data_dir,
        options.model,
        options.device,
        options.deal,
        options.codec,
        options.pruning,
    )
    memory = Path(options.memory) if options.memory else _state_folder()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    work(owned, connection, memory, _say)


def _keys(options: argparse.Namespace) -> None:
    _need_flower()
    from adaptcl.engines.network.keys import make_keys

    if options.workers < 1:
        raise SettingError("--workers must be at least 1.")
    for folder in make_keys(Path(options.folder), options.workers, options.host):
        print(folder)


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise SettingError("Working across a network needs Flower: pip install 'adaptcl[network]'.")


def _refuse_without_port(server: str) -> None:
    """Without a port a worker would knock at that of web servers, and wait in vain."""
    found = _HOST_AND_PORT.fullmatch(server)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise SettingError(f"--server is {server!r}, but it must be HOST:PORT.")


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "adaptcl"


def _silence(text: str) -> float:
    value = float(text)
    if not 20 <= value <= 3600:
        raise argparse.ArgumentTypeError("it must be from 20 to 3600")
    return value


def _say(line: str) -> None:
    print(f"adaptcl: {line}", file=sys.stderr, flush=True)
