"""The network engine does what the simulation does, and copes with what only networks do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.events import Warned, WorkerLost
from adaptcl.runs.result import Result

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

RATES = ((0.3, 0.2, 0.0), (0.2, 0.0, 0.1))


@pytest.mark.parametrize("codec", ["plain", "int8", "dgc"])
def test_the_global_model_is_that_of_the_simulation(site: Site, codec: str) -> None:
    """Bit for bit, unless updates that arrive in another order are rounded differently."""
    chosen = site.settings(strategy="adaptcl", pruned_rates=RATES, codec=codec)
    for number in range(3):
        site.worker(number)
    (over_network,) = site.serve(chosen)
    simulated = site.undisturbed(chosen)

    theirs = simulated.model.state_dict()
    for name, tensor in over_network.model.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)
    assert over_network.summary.retention == simulated.summary.retention
    assert over_network.summary.retention[0] < 0.6


def test_the_same_workers_do_one_run_after_the_other(site: Site) -> None:
    workers = [site.worker(number) for number in range(3)]
    first, second = site.serve(
        site.settings(strategy="fedavg", rounds=2), site.settings(strategy="adaptcl", rounds=2)
    )
    assert (first.summary.strategy, second.summary.strategy) == ("fedavg", "adaptcl")
    for number, worker in enumerate(workers):
        worker.join()
        assert site.said_by[number][-1] == "the run is over"
    assert not list(site.folder.glob("memory-*/*")), "what they remembered is forgotten"
    assert not any(isinstance(each, Warned | WorkerLost) for each in site.events)


@pytest.mark.parametrize("strategy", ["fedasync-s", "ssp-s", "fedbuff"])
def test_strategies_without_a_barrier_run_unchanged(site: Site, strategy: str) -> None:
    for number in range(3):
        site.worker(number)
    (result,) = site.serve(site.settings(strategy=strategy, rounds=5))
    assert result.summary.rounds == 5
    assert result.summary.best_accuracy > 0.8


def test_times_and_bytes_are_what_the_server_saw(site: Site) -> None:
    for number in range(3):
        site.worker(number)
    began = time.monotonic()
    (result,) = site.serve(site.settings(strategy="fedavg", rounds=3))
    elapsed = time.monotonic() - began
    assert 0 < result.rounds[0].virtual_time_s < result.rounds[-1].virtual_time_s < elapsed
    for record in result.rounds:
        for worker in record.workers:
            parts = (worker.send_s, worker.train_s, worker.receive_s)
            assert min(parts) > 0
            assert sum(parts) == pytest.approx(worker.update_time_s)
            assert worker.bytes_sent == pytest.approx(size(result), rel=0.03)
            assert worker.bytes_received == pytest.approx(size(result), rel=0.03)


def size(result: Result) -> int:
    return sum(t.numel() * t.element_size() for t in result.model.state_dict().values())
