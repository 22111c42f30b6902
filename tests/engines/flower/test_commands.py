"""What the commands do before anything goes over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

Command = Callable[..., tuple[int, str, str]]
NOBODY = ("--server", "localhost:1", "--patience", "0.2", "--data", "digits")


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_worker_keeps_to_the_cores_it_is_given(command: Command) -> None:
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    torch.set_num_threads(2)
    command("worker", "--tls", "keys/worker-0", "--memory", "memory", "--threads", "1", *NOBODY)
    assert torch.get_num_threads() == 1


def test_a_worker_cannot_train_on_no_core(command: Command) -> None:
    status, _, errors = command("worker", "--tls", "keys/worker-0", "--threads", "0", *NOBODY)
    assert status == 2
    assert "--threads: it must be at least 1" in errors
