"""What a worker refuses, and how it says so: one sentence for each thing that can be wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

import adaptcl
from adaptcl import models
from adaptcl.codecs import Payload, codecs
from adaptcl.codecs.codec import Codecs
from adaptcl.data.description import SampleForm
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import Invitation, Reply, fingerprint
from adaptcl.engines.network.keys import WorkerKeys, make_keys, server_keys, worker_keys
from adaptcl.engines.network.messages import INVITE, read_update, task_frame
from adaptcl.engines.network.server.fleet import Fleet
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.engines.network.worker.node import Incoming, Node
from adaptcl.engines.network.worker.worker_process import (
    Participation,
    Prepare,
    ServerConnection,
    WorkerProcess,
)
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.runs.network.worker import OwnerChoices, describe, prepare
from adaptcl.training import Recipe, Task
from adaptcl.training.wire import (
    FrozenTensorHolders,
    LackingError,
    digest,
    encode_model,
    frozen_tensors,
)
from adaptcl.training.worker import Worker
from adaptcl.units import State, trace
from adaptcl.units.as_json import units_to_json

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

OWNER = OwnerChoices("digits", "", "", "cpu", dealt=False)


def work(site: Site, connection: ServerConnection, said: list[str] | None = None) -> None:
    data = LocalData.named("digits")
    WorkerProcess(
        connection,
        lambda invitation: prepare(OWNER, data, invitation),
        lambda question: describe(OWNER, data, question),
        site.folder / "memory",
        (said if said is not None else []).append,
    ).run()


def test_a_server_that_is_not_there_is_waited_for_and_then_given_up(
    site: Site, free_port: int
) -> None:
    said: list[str] = []
    connection = ServerConnection(
        f"localhost:{free_port}", worker_keys(site.keys / "worker-0"), 0.5
    )
    with pytest.raises(AdaptCLError, match=r"could not be reached for 0\.5 s: .*refused"):
        work(site, connection, said)
    assert len(said) == 1, "waiting is said once, not once a second"


def test_a_server_that_is_killed_while_a_worker_connects_is_waited_for_like_any_other(
    site: Site,
) -> None:
    """It has not proved to be another one by breaking off."""
    with socket.create_server(("127.0.0.1", 0)) as dying:

        def break_off() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = dying.accept()
                    connection.recv(1)
                    connection.close()

        threading.Thread(target=break_off, daemon=True).start()
        address = f"localhost:{dying.getsockname()[1]}"
        connection = ServerConnection(address, worker_keys(site.keys / "worker-0"), 0.5)
        with pytest.raises(AdaptCLError, match=r"could not be reached for 0\.5 s"):
            work(site, connection)


def test_what_is_no_address_is_said_to_be_none(site: Site) -> None:
    connection = ServerConnection("server:port", worker_keys(site.keys / "worker-0"), 300.0)
    with pytest.raises(AdaptCLError, match=r"'server:port' is no address of the form HOST:PORT"):
        work(site, connection)


def test_a_server_with_another_certificate_is_not_spoken_to(site: Site, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", 3, ["localhost"])
    with Fleet(server_keys(tmp_path / "others", 3), "127.0.0.1", 0) as fleet:
        address = f"localhost:{fleet.address[1]}"
        connection = ServerConnection(address, worker_keys(site.keys / "worker-0"), 300.0)
        with pytest.raises(AdaptCLError, match=r"prove to be the one.*verify failed.*same `adap"):
            work(site, connection)


def test_a_server_under_another_name_is_not_spoken_to(site: Site, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", 1, ["elsewhere.example"])
    with Fleet(server_keys(tmp_path / "others", 1), "127.0.0.1", 0) as fleet:
        keys = worker_keys(tmp_path / "others" / "worker-0")
        connection = ServerConnection(f"localhost:{fleet.address[1]}", keys, 300.0)
        with pytest.raises(AdaptCLError, match=r"does not prove to be the one.*localhost'\.?$"):
            work(site, connection)


def test_something_else_at_the_port_is_waited_out(site: Site) -> None:
    """Such as a proxy that shows a page about its maintenance."""

    def show_a_page() -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = page.accept()
                with here:
                    here.recv(2**16)
                    here.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")

    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as page:
        threading.Thread(target=show_a_page, daemon=True).start()
        address = f"localhost:{page.getsockname()[1]}"
        connection = ServerConnection(address, worker_keys(site.keys / "worker-0"), 0.1)
        with pytest.raises(AdaptCLError, match=r"could not be reached for 0\.1 s: .*WRONG_VERSION"):
            work(site, connection, said)
    assert said[0].startswith(f"waiting for {address}: ")


def test_a_worker_whose_key_the_server_does_not_know_says_so(site: Site, tmp_path: Path) -> None:
    with Fleet(server_keys(site.keys, 2), "127.0.0.1", 0) as fleet:
        keys = worker_keys(site.keys / "worker-2")
        connection = ServerConnection(f"localhost:{fleet.address[1]}", keys, 300.0)
        with pytest.raises(AdaptCLError, match=r"refuses this worker.*this run takes keys 0 to 1"):
            work(site, connection)
    make_keys(tmp_path / "others", 1, ["localhost"])
    with Fleet(server_keys(site.keys, 2), "127.0.0.1", 0) as fleet:
        theirs = worker_keys(tmp_path / "others" / "worker-0").key
        keys = WorkerKeys(worker_keys(site.keys / "worker-0").authority, theirs)
        connection = ServerConnection(f"localhost:{fleet.address[1]}", keys, 300.0)
        with pytest.raises(AdaptCLError, match=r"refuses this worker.*does not know"):
            work(site, connection)


def test_a_second_worker_with_the_same_key_is_refused(site: Site) -> None:
    said: list[str] = []
    with Fleet(server_keys(site.keys, 3), "127.0.0.1", 0) as fleet:
        address = f"localhost:{fleet.address[1]}"
        keys = worker_keys(site.keys / "worker-0")
        with (
            Node(address, keys, 3600.0).connected(),
            pytest.raises(AdaptCLError, match="with this key is connected already"),
        ):
            work(site, ServerConnection(address, keys, 1.0), said)
        assert said[-1].endswith("connection, the server gives it up after 30 s of silence.")


def test_a_port_that_is_taken_is_said_to_be(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=rf"cannot listen at 127.0.0.1:{port} \(Address"):
            Fleet(server_keys(site.keys, 3), "127.0.0.1", port)


def test_keys_that_are_missing_are_named(site: Site) -> None:
    with pytest.raises(SettingError, match=r"0\.pem cannot be read .*adaptcl keys"):
        server_keys(site.folder, 3)
    with pytest.raises(SettingError, match=r"key\.pem cannot be read"):
        worker_keys(site.folder)
    with pytest.raises(SettingError, match=r"server's folder of keys; .* named worker-N beside"):
        worker_keys(site.keys / "server")


class FakeNode:
    """A connection that keeps what it is to send."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def answer(self, incoming: Incoming, content: bytes) -> None:
        self.sent.append(Frame.from_bytes(content))


DIGITS = SampleForm((1, 8, 8), "uint8", None, None, tuple("0123456789"))


def join(prepare: Prepare, folder: Path) -> tuple[str, AdaptCLError]:
    """Let a worker answer an invitation that it cannot follow; gives what the server reads, and
    the error with which the worker ends."""
    settings = {"model": "small", "workers": 1, "codec": "plain"}
    return refuse(Invitation("run", 0, "", settings, DIGITS, {}).frame(), prepare, folder)


def refuse(asked: Frame, prepare: Prepare, folder: Path) -> tuple[str, AdaptCLError]:
    nowhere: Any = None
    process, node = WorkerProcess(nowhere, prepare, nowhere, folder, print), FakeNode()
    with pytest.raises(AdaptCLError) as refused:
        process._take_part(cast(Node, node), Incoming(INVITE, asked.to_bytes(), nowhere))
    (sent,) = node.sent
    return Reply.read(sent).error, refused.value


def test_data_that_differ_are_named_to_owner_and_server(tmp_path: Path) -> None:
    data = LocalData.named("fashion")
    to_server, error = join(lambda asked: prepare(OWNER, data, asked), tmp_path)
    assert to_server == str(error)
    assert to_server == (
        "The worker's inputs are uint8 [1, 28, 28], those of the server uint8 [1, 8, 8]; both "
        "must be equal."
    )


@pytest.mark.parametrize(
    ("server", "named"), [({"version": "0.3.1"}, "0.3.1"), ({}, "of an earlier version")]
)
def test_a_server_of_another_version_is_named_on_both_sides(
    server: dict[str, str], named: str, tmp_path: Path
) -> None:
    nothing_read: Any = None
    to_server, error = refuse(Frame({**server, "new": 1}, {}), nothing_read, tmp_path)
    assert to_server == str(error)
    assert to_server == (
        f"The server has AdaptCL {named}, but the worker has {adaptcl.__version__}; install the "
        "same version on both."
    )


def test_of_what_fails_while_joining_the_server_hears_nothing_that_is_the_workers(
    tmp_path: Path,
) -> None:
    def fail(_: Invitation) -> tuple[Worker, Codecs]:
        raise OSError("/home/alice/patients.csv is missing")

    to_server, error = join(fail, tmp_path)
    assert to_server == "something failed on it; it says there what is wrong."
    assert str(error) == (
        "This worker cannot take part, because something failed: OSError: "
        "/home/alice/patients.csv is missing."
    )


def test_data_that_cannot_be_used_are_described_to_the_owner_only(tmp_path: Path) -> None:
    def fail(_: Invitation) -> tuple[Worker, Codecs]:
        raise DataError("bone/3.png cannot be decoded.")

    to_server, error = join(fail, tmp_path)
    assert to_server == "its data cannot be used; it says there what is wrong."
    assert str(error) == "bone/3.png cannot be decoded."


def test_of_a_task_that_fails_its_owner_sees_all_and_the_server_the_kind_of_error(
    tmp_path: Path,
) -> None:
    class Failing:
        def make_update(self, content: bytes) -> bytes:
            raise ZeroDivisionError("my augment failed on patient Roe")

    said: list[str] = []
    nowhere: Any = None
    process = WorkerProcess(nowhere, nowhere, nowhere, tmp_path, said.append)
    answer = process._answer_task(cast(Participation, Failing()), b"task")
    assert Reply.read(Frame.from_bytes(answer)).error == "ZeroDivisionError"
    assert b"Roe" not in answer
    (failure,) = said
    assert "Traceback (most recent call last)" in failure
    assert "ZeroDivisionError: my augment failed on patient Roe" in failure


def test_a_task_is_begun_with_what_the_latest_used_update_has_left(tmp_path: Path) -> None:
    settings = {"model": "small", "workers": 1, "codec": "dgc", "dgc_warmup": 0}
    model = models.build("small", (1, 8, 8), 10, 1)
    units = trace(model, torch.zeros(2, 1, 8, 8), models.MODELS["small"].fixed)
    invitation = Invitation(
        "run", 0, fingerprint(model, units), settings, DIGITS, {}, units=units_to_json(units)
    )
    recipe = Recipe(epochs=0.1, strength=0.0)

    def answer(part: Participation, number: int, used: int) -> State:
        task = Task(0, number, model.state_dict(), units.everything(), recipe)
        frame = Frame.from_bytes(
            part.make_update(task_frame(task, Payload(dict(task.state)), used).to_bytes())
        )
        return dict(read_update(frame, units)[1].tensors)

    def begun(name: str) -> Participation:
        found = prepare(OWNER, LocalData.named("digits"), invitation)
        return Participation(invitation, *found, tmp_path / name, said.append)

    said: list[str] = []
    busy, fresh = begun("busy"), begun("fresh")
    answer(busy, 1, used=0)
    assert re.fullmatch(r"round 1: \d+ samples, loss [\d.]+, [\d.]+ s", said[-1])
    after_none = answer(busy, 2, used=0)
    expected = answer(fresh, 2, used=0)
    assert all(torch.equal(after_none[name], tensor) for name, tensor in expected.items())
    after_it = answer(busy, 3, used=2)
    without = answer(begun("third"), 3, used=0)
    assert any(not torch.equal(after_it[name], tensor) for name, tensor in without.items())


def test_a_worker_warms_up_by_a_schedule_that_counts_rounds_from_1(tmp_path: Path) -> None:
    model = models.build("small", (1, 8, 8), 10, 1)
    units = trace(model, torch.zeros(2, 1, 8, 8))
    samples = LocalData.named("digits").fitted(DIGITS)
    asked: list[int] = []

    def schedule(round_: int) -> float:
        asked.append(round_)
        return 1 / round_

    worker = Worker(0, samples, model, units, 1, schedule=schedule)
    invitation = Invitation("run", 0, fingerprint(model, units), {}, DIGITS, {})
    Participation(invitation, worker, codecs("plain", "same", {}), tmp_path)
    assert asked == [1]


def test_a_worker_says_that_it_has_the_frozen_tensors_only_if_they_are_the_servers(
    tmp_path: Path,
) -> None:
    model = models.build("small", (1, 8, 8), 10, 1)
    next(model.parameters()).requires_grad_(False)
    units = trace(model, torch.zeros(2, 1, 8, 8))
    samples = LocalData.named("digits").fitted(DIGITS)
    plain = codecs("plain", "same", {})
    worker = Worker(0, samples, model, units, 1)
    print_ = fingerprint(model, units)
    other = Invitation("run", 0, print_, {}, DIGITS, {}, "another hash")
    part = Participation(other, worker, plain, tmp_path)
    assert part.frozen is None
    same = dataclasses.replace(other, frozen=digest(frozen_tensors(model.state_dict(), units)))
    held = Participation(same, worker, plain, tmp_path).frozen
    assert held is not None
    assert bool(held.kept.all())

    holders = FrozenTensorHolders(units)
    task = Task(0, 1, model.state_dict(), units.everything(), Recipe(epochs=0.1))
    whole = task_frame(task, encode_model(task, units, plain.down), 0, holders.tensors_for(task))
    holders.answered(task)
    rest = task_frame(task, encode_model(task, units, plain.down), 0, holders.tensors_for(task))
    with pytest.raises(LackingError):
        part.make_update(rest.to_bytes())
    answers = [part.make_update(frame.to_bytes()) for frame in (whole, rest)]
    payloads = [read_update(Frame.from_bytes(each), units)[1] for each in answers]
    assert not payloads[0].tensors.keys() & units.unchanging
    for name, tensor in payloads[0].tensors.items():
        assert torch.equal(tensor, payloads[1].tensors[name])


def test_a_server_cannot_name_code_for_a_worker_to_import() -> None:
    data = LocalData.named("digits")
    for name in ("os:system", "shutil:rmtree", "adaptcl.models.vgg:small"):
        settings = {"model": name, "workers": 1, "codec": "plain"}
        asked = Invitation("run", 0, "", settings, DIGITS, {})
        with pytest.raises(AdaptCLError, match="imports only what its owner names"):
            prepare(OWNER, data, asked)
