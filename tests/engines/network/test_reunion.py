"""Workers that took part before are waited for, but not for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.network.server.waiting import going_on_without, longest_wait
from adaptcl.events import Event, RunStarted, UpdateArrived, Warned, WorkerJoined, WorkerLost
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.result import Result
from adaptcl.runs.server import serve_again

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

GOES_ON = "The run goes on without worker 2, which has not come; it is taken back at any time."


class KilledError(Exception):
    """Ends a server in the middle."""


def switched_off(content: bytes) -> bytes:
    raise SystemExit


def honestly(content: bytes) -> bytes:
    return content


def warnings(site: Site) -> list[str]:
    return [each.message for each in site.events if isinstance(each, Warned)]


def wait_half_a_minute_once_two_are_there(site: Site) -> None:
    """Of the run that has begun last."""

    def pass_the_time(event: Event) -> None:
        began = [n for n, each in enumerate(site.events) if isinstance(each, RunStarted)]
        joined = [each for each in site.events[began[-1] :] if isinstance(each, WorkerJoined)]
        if isinstance(event, WorkerJoined) and len(began) == 2 and len(joined) == 2:
            site.clock.advance(31)

    site.whenever(pass_the_time)


def assert_done_by_two(site: Site, result: Result, first: int) -> None:
    assert GOES_ON in warnings(site)
    assert site.of(WorkerLost, 2)[-1].reason == "it has not come"
    for record in result.rounds[first:]:
        assert [each.worker for each in record.workers] == [0, 1]


def test_the_second_run_of_a_server_goes_on_without_a_worker_that_is_gone(site: Site) -> None:
    wait_half_a_minute_once_two_are_there(site)
    site.worker(0)
    site.worker(1)
    site.worker(2, [honestly, switched_off])
    began = time.perf_counter()
    first, second = site.serve(
        site.settings(strategy="fedavg", rounds=3), site.settings(strategy="adaptcl", rounds=3)
    )
    assert_done_by_two(site, second, first=0)
    elapsed = time.perf_counter() - began
    assert first.summary.wall_time_s + second.summary.wall_time_s < elapsed, "each has its own"


def test_a_resumed_run_goes_on_without_a_worker_that_is_gone(site: Site) -> None:
    def kill_in_the_third_round(event: Event) -> None:
        if isinstance(event, UpdateArrived) and event.round == 3 and not killed:
            killed.append(event)
            raise KilledError

    killed: list[Event] = []
    site.whenever(kill_in_the_third_round)
    wait_half_a_minute_once_two_are_there(site)
    for number in range(3):
        site.worker(number)
    with pytest.raises(KilledError):
        site.serve(site.settings(strategy="adaptcl", rounds=5))
    site.not_listening()
    site.worker(0)
    site.worker(1)
    (result,) = serve_again([site.folder / "run"], site.listeners, site.hear, site.clock)
    assert len(result.rounds) == 5
    assert_done_by_two(site, result, first=2)


def test_where_only_the_model_is_left_to_be_written_nobody_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", full_disk)
        for number in range(3):
            site.worker(number)
        with pytest.raises(KilledError):
            site.serve(site.settings(strategy="adaptcl", rounds=2))
    site.not_listening()
    (result,) = serve_again([site.folder / "run"], site.listeners, site.hear, site.clock)
    assert len(result.rounds) == 2
    assert (site.folder / "run" / "model.safetensors").exists()


def test_nobody_is_waited_for_longer_than_for_a_task() -> None:
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 2.0]) == 30
    assert longest_wait({2}, connected=set(), patience=3600, update_times=[1.0, 200.0]) == 400
    assert longest_wait({1, 2}, connected={1}, patience=3600, update_times=[0.0]) == 3600
    assert longest_wait({2}, connected=set(), patience=10, update_times=[100.0]) == 10


def test_those_left_out_are_named() -> None:
    assert going_on_without({2}) == GOES_ON
    assert "workers 1 and 2, which have not come; they are taken" in going_on_without({2, 1})
