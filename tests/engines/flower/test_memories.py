"""What a worker remembers survives its process, and a server that goes back a round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.codecs.codec import Memory
from adaptcl.engines.flower.memories import Memories
from adaptcl.training.worker import WorkerMemory


def of(value: float) -> WorkerMemory:
    return WorkerMemory(value, Memory({"left": torch.full((2,), value)}))


def test_a_new_process_knows_what_the_old_one_did(tmp_path: Path) -> None:
    Memories(tmp_path, "run", 0).after(1, of(0.5))
    again = Memories(tmp_path, "run", 0).before(2)
    assert again.lasso == 0.5
    assert torch.equal(again.codec.tensors["left"], torch.full((2,), 0.5))


def test_a_round_done_again_begins_from_what_was_known_then(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    for number in range(1, 6):
        memories.after(number, of(float(number)))
    assert memories.before(5).lasso == 4.0
    assert memories.before(6).lasso == 5.0
    memories.after(5, of(9.0))
    assert memories.before(6).lasso == 9.0


def test_runs_and_workers_do_not_share_a_memory(tmp_path: Path) -> None:
    Memories(tmp_path, "run", 0).after(1, of(0.5))
    assert Memories(tmp_path, "run", 1).before(2).lasso is None
    assert Memories(tmp_path, "other", 0).before(2).lasso is None


def test_forgetting_leaves_no_file(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    memories.after(1, of(0.5))
    memories.forget()
    assert list(tmp_path.iterdir()) == []
