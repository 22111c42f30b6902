"""`adaptcl server`, `worker` and `keys`, before anything goes over a network."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.cli.parser import command_line
from adaptcl.cli.resume import resume_runs
from adaptcl.errors import RunFolderError
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import NetworkFile
from adaptcl.runs.network import session as network_session

Command = Callable[..., tuple[int, str, str]]
NOBODY = ("--server", "localhost:1", "--patience", "0.2", "--data", "digits")


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a_worker_keeps_to_the_cores_it_is_given(command: Command) -> None:
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    torch.set_num_threads(2)
    command("worker", "--tls", "keys/worker-0", "--memory", "memory", "--threads", "1", *NOBODY)
    assert torch.get_num_threads() == 1


def test_a_worker_cannot_train_on_no_core(command: Command) -> None:
    status, _, errors = command("worker", "--tls", "keys/worker-0", "--threads", "0", *NOBODY)
    assert status == 2
    assert "--threads: it is '0', but it must be a whole number, at least 1;" in errors


def test_how_long_a_worker_may_be_silent_has_limits(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("3", "abc"):
        words = ("worker", "--tls", "keys/worker-0", "--silence", word, *NOBODY)
        sentence = (
            f"--silence: it is '{word}', but it must be a number, at least 20 and at most 3600;"
        )
        assert sentence in command(*words)[2]
    with pytest.raises(SystemExit):
        command("worker", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "seconds, from 20 to 3600, without a sign of life" in text


def test_a_patience_is_a_time() -> None:
    words = ["worker", "--server", "x:1", "--tls", "k", "--data", "digits", "--patience", "2min"]
    assert command_line().parse_args(words).patience == 120


@pytest.mark.slow
def test_what_a_worker_and_a_server_print_begins_with_the_time_of_day(command: Command) -> None:
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    errors = command("worker", *NOBODY, "--tls", "keys/worker-0")[2].splitlines()
    assert "waiting for localhost:1: " in errors[0]
    assert all(re.match(f"{time} adaptcl: ", line) for line in errors)
    words = ("--model", "small", "--data", "digits", "--workers", "3", "--tls", "keys")
    assert re.match(f"{time} adaptcl: ", command("server", *words, "--out", "x")[2])


def test_a_server_must_be_named_with_its_port(command: Command) -> None:
    for server in (
        "localhost", "localhost:", ":9092", "localhost:0", "localhost:65536", "localhost:x", "::1",
        "https://localhost:9092", "a b:9092", "[::1]", "localhost:9092/fleet",
    ):  # fmt: skip
        words = ("--tls", "keys/worker-0", "--data", "digits", "--server", server)
        sentence = f"adaptcl: --server is {server!r}, but it must be HOST:PORT.\n"
        status, output, errors = command("worker", *words)
        assert (status, output) == (2, "")
        assert errors.endswith(sentence)


def test_a_server_has_a_name_or_an_address_and_a_port(command: Command) -> None:
    for server in ("localhost:1", "127.0.0.1:1", "[::1]:1"):
        words = ("--tls", "absent", "--data", "digits", "--server", server)
        status, _, errors = command("worker", *words)
        assert status == 2
        assert "must be HOST:PORT" not in errors


def test_a_host_that_is_none_gets_no_keys(command: Command) -> None:
    assert command("keys", "keys", "--workers", "2", "--host", "bad host") == (
        2,
        "",
        "adaptcl: --host is 'bad host', but it must be a host's name or its address.\n",
    )


def test_keys_are_made_for_all_or_renewed_for_one(command: Command) -> None:
    assert command("keys", "keys") == (
        2,
        "",
        "adaptcl: New keys need --workers N and --host HOST, the address of the server.\n",
    )
    assert command("keys", "keys", "--workers", "2", "--host", "localhost")[0] == 0
    assert command("keys", "keys", "--renew", "1") == (0, "keys/worker-1\n", "")
    assert "leave --workers" in command("keys", "keys", "--renew", "1", "--workers", "2")[2]


def test_a_server_says_for_how_many_workers_it_has_keys(command: Command) -> None:
    assert command("keys", "keys", "--workers", "2", "--host", "localhost")[0] == 0
    words = ("--model", "small", "--data", "digits", "--workers", "3", "--tls", "keys")
    status, _, errors = command("server", *words, "--listen", "127.0.0.1:0", "--out", "x")
    assert status == 2
    assert "keys/server has keys for 2 workers only, but the run has 3; " in errors
    assert "adaptcl: reading digits and tracing small" in errors.splitlines()[0]


def test_a_run_cannot_begin_with_more_workers_than_it_has(command: Command) -> None:
    words = ("--model", "small", "--data", "digits", "--workers", "3", "--tls", "keys")
    status, _, errors = command("server", *words, "--least-workers", "4", "--out", "x")
    assert status == 2
    assert "--least-workers is 4, but the run has 3 workers; give that number or a sma" in errors


def test_a_model_that_is_not_there_is_named_before_workers_are_waited_for(
    command: Command,
) -> None:
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    words = ("--model", "nowhere:build", "--data", "workers", "--holdout", "0.1")
    status, _, errors = command("server", *words, "--workers", "1", "--tls", "keys", "--out", "x")
    assert status == 2
    assert "There is no module nowhere, where a model 'nowhere:build' should be" in errors
    assert "listening" not in errors


def test_whatever_ends_a_server_it_says_how_to_go_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise RunFolderError("rounds.jsonl cannot be written: No space left on device.")

    monkeypatch.setattr(network_session, "run_session", full_disk)
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    words = ("--model", "small", "--data", "digits", "--workers", "1", "--tls", "keys")
    place = ("--listen", "127.0.0.1:0", "--strategy", "fedavg,adaptcl", "--out", "run")
    status, _, errors = command("server", *words, *place)
    assert status == 2
    assert "stopped; `adaptcl resume run/fedavg run/adaptcl` goes on." in errors
    assert errors.endswith("rounds.jsonl cannot be written: No space left on device.\n")


def interrupted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run across a network in the folder `run`, which ended before anything was trained."""

    def full_disk(*_: object) -> None:
        raise RunFolderError("rounds.jsonl cannot be written: No space left on device.")

    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    words = ("--model", "small", "--data", "digits", "--workers", "1", "--tls", "keys")
    with monkeypatch.context() as patched:
        patched.setattr(network_session, "run_session", full_disk)
        assert command("server", *words, "--listen", "127.0.0.1:0", "--out", "run")[0] == 2


def test_a_run_that_goes_on_already_is_not_resumed_and_nothing_is_said_to_have_stopped(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(command, monkeypatch)
    with closing(RunFolder.open(Path("run"))):
        status, _, errors = command("resume", "run")
    assert status == 2
    assert errors == "adaptcl: run is being written by another process; the run goes on already.\n"


def test_a_resumed_server_may_listen_elsewhere_with_other_keys_and_patience(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(command, monkeypatch)
    assert Path("run").stat().st_mode & 0o077 == 0, "only its owner looks into it"
    shutil.move("keys", "moved")
    words = ("--address", "127.0.0.1:0", "--tls", "moved/server", "--patience", "60")
    more = ("--least-workers", "1", "--wait", "10min")
    assert "0.pem cannot be read" in command("resume", "run")[2]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(network_session, "run_session", stop)
    with pytest.raises(KeyboardInterrupt):
        resume_runs(command_line().parse_args(["resume", "run", *words, *more]))
    file = NetworkFile.read(Path("run"))
    assert (file.listen, file.patience) == ("127.0.0.1:0", 60)
    assert (file.least_workers, file.wait) == (1, 600)
    assert file.tls == str(Path("moved/server").resolve())


def test_a_taken_address_is_said_with_the_flag_that_changes_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(command, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, errors = command("resume", "run", "--address", address)
    assert status == 2
    assert "with --address if you resume a run" in errors
    assert "stopped" not in errors


def test_a_server_shows_its_runs_on_a_page_and_reports_each_to_listeners(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    told: list[str] = []

    def stop(_: object, folder: RunFolder, listeners: Sequence[object]) -> None:
        told.extend([folder.path.name, *(type(each).__name__ for each in listeners)])
        raise RunFolderError("The test is over.")

    monkeypatch.setattr(network_session, "run_session", stop)
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    words = ("--model", "small", "--data", "digits", "--workers", "1", "--tls", "keys")
    place = ("--listen", "127.0.0.1:0", "--strategy", "fedavg,adaptcl", "--out", "run")
    Path("my_server.py").write_text("def listen(event): pass\n")
    told_too = ("--track", "tensorboard", "--listener", "my_server:listen")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    _, _, errors = command("server", *words, *place, "--watch-port", str(port), *told_too)
    assert told == ["fedavg", "Progress", "function", "TensorBoardTracker"]
    address = re.search(r"watch it at (\S+)", errors)
    assert address is not None
    assert f":{port}/" in address[1]
    with urlopen(f"{address[1]}data.json") as answer:
        shown = json.load(answer)
    assert [(each["label"], each["state"]) for each in shown["live"]] == [
        ("fedavg", "pending"),
        ("adaptcl", "pending"),
    ]
