"""The run goes on for as long as its server does, and leaves nothing behind on the way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from flwr.common.constant import SubStatus
from flwr.server.superlink.linkstate import in_memory_linkstate
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now

from adaptcl.engines.flower.fleet import Fleet, Replied
from adaptcl.engines.flower.frames import Frame
from adaptcl.engines.flower.keys import server_keys, worker_keys
from adaptcl.engines.flower.messages import TASK
from adaptcl.engines.flower.node import DisconnectedError, Incoming, Node

if TYPE_CHECKING:
    from tests.engines.flower.conftest import Site

QUESTION = Frame({"question": 1}, {}).to_bytes()


@pytest.fixture
def fleet(site: Site) -> Iterator[Fleet]:
    with Fleet(server_keys(site.keys, 1), "127.0.0.1", 0) as opened:
        site.address = f"localhost:{opened.address[1]}"
        yield opened


def node(site: Site) -> Node:
    return Node(site.address, worker_keys(site.keys / "worker-0"), 3600.0)


def received(site: Site, worker: Node) -> Incoming:
    found: list[Incoming] = []

    def there() -> bool:
        found.extend(each for each in [worker.receive()] if each is not None)
        return bool(found)

    site.wait_for(there)
    return found[0]


def reply(site: Site, fleet: Fleet) -> Replied:
    found: list[Replied] = []

    def there() -> bool:
        found.extend(each for each in fleet.wait(1) if isinstance(each, Replied))
        return bool(found)

    site.wait_for(there)
    return found[0]


def test_a_run_survives_a_pause_of_its_server(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine was asleep, or its clock has been set."""

    def later() -> datetime:
        return now() + timedelta(minutes=10)

    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        for module in (in_memory_corestate, in_memory_linkstate):
            monkeypatch.setattr(module, "now", later)
        asked = fleet.send(0, TASK, QUESTION)
        worker.answer(received(site, worker), QUESTION)
        assert reply(site, fleet).message == asked


def test_a_server_without_a_run_is_one_to_wait_for(site: Site, fleet: Fleet) -> None:
    worker = node(site)
    with worker.connected():
        fleet.wait(60)
        fleet.send(0, TASK, QUESTION)
        incoming = received(site, worker)
        (run,) = fleet._state.get_run_info()
        assert run.primary_task_id is not None
        fleet._state.finish_task(run.primary_task_id, SubStatus.STOPPED, "")
        with pytest.raises(DisconnectedError, match="no run under way"):
            worker.answer(incoming, QUESTION)
