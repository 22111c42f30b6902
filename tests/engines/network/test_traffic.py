"""Across machines too, answers that come to nothing have travelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.events import UpdateArrived, WorkerJoined, WorkerLost
from adaptcl.runs.result import Result

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site


def unused(result: Result) -> tuple[int, int]:
    """Bytes sent and received beyond those of the updates that were used."""
    workers = [worker for record in result.rounds for worker in record.workers]
    return (
        result.summary.bytes_sent - sum(w.bytes_sent for w in workers),
        result.summary.bytes_received - sum(w.bytes_received for w in workers),
    )


def test_where_all_goes_well_the_bytes_are_those_of_the_updates(site: Site) -> None:
    for number in range(3):
        site.worker(number)
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=2))
    assert unused(result) == (0, 0)


def test_an_answer_that_cannot_be_used_has_travelled_with_its_task(site: Site) -> None:
    site.ask_again_at_once()
    site.worker(0)
    site.worker(1)
    site.worker(2, [lambda content: b"\x00" * 1000, lambda content: content])
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=6))
    assert len(site.of(WorkerLost, 2)) == 1
    sent, received = unused(result)
    assert received == 1000
    assert sent == pytest.approx(result.rounds[0].workers[0].bytes_sent, rel=0.01)


def test_an_answer_that_was_waited_for_in_vain_has_travelled_when_it_comes(site: Site) -> None:
    def too_late(content: bytes) -> bytes:
        site.wait_for(lambda: site.of(UpdateArrived, 0) and site.of(UpdateArrived, 1))
        site.clock.advance(3601)
        site.wait_for(lambda: site.of(WorkerLost, 2))
        return content

    site.worker(0, [lambda content: content, site.after(lambda: len(site.of(WorkerJoined, 2)) > 1)])
    site.worker(1)
    site.worker(2, [too_late])
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=3), patience=3600)
    assert len(site.of(WorkerLost, 2)) == 1
    sent, received = unused(result)
    used = result.rounds[0].workers[0]
    assert sent == pytest.approx(used.bytes_sent, rel=0.01)
    assert received == pytest.approx(used.bytes_received, rel=0.01)
