"""What a worker remembers survives its process, and a server that goes back a round."""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.codecs.codec import Memory
from adaptcl.engines.network.worker import memory_store as module
from adaptcl.engines.network.worker.memory_store import Memories
from adaptcl.errors import AdaptCLWarning
from adaptcl.training.worker import WorkerMemory


def of(value: float) -> WorkerMemory:
    return WorkerMemory(value, Memory({"left": torch.full((2,), value)}))


def test_a_new_process_knows_what_the_old_one_did(tmp_path: Path) -> None:
    Memories(tmp_path, "run", 0).after(1, of(0.5), 0)
    again = Memories(tmp_path, "run", 0).before(2, 1)
    assert again.lasso_lambda == 0.5
    assert torch.equal(again.codec.tensors["left"], torch.full((2,), 0.5))


def test_a_round_done_again_begins_from_what_was_known_then(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    for number in range(1, 6):
        memories.after(number, of(float(number)), number - 1)
    assert memories.before(5, 4).lasso_lambda == 4.0
    assert memories.before(6, 5).lasso_lambda == 5.0
    memories.after(5, of(9.0), 4)
    assert memories.before(6, 5).lasso_lambda == 9.0


def test_runs_and_workers_do_not_share_a_memory(tmp_path: Path) -> None:
    Memories(tmp_path, "run", 0).after(1, of(0.5), 0)
    assert Memories(tmp_path, "run", 1).before(2, 1).lasso_lambda is None
    assert Memories(tmp_path, "other", 0).before(2, 1).lasso_lambda is None


def test_forgetting_leaves_no_file(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    memories.after(1, of(0.5), 0)
    memories.forget()
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_seldom_asked_remembers_no_less(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    for number in (3, 17, 40):
        memories.after(number, of(float(number)), number - 1)
    assert memories.before(3, 2).lasso_lambda is None
    assert [memories.before(number, number - 1).lasso_lambda for number in (17, 40, 60)] == [
        3.0,
        17.0,
        40.0,
    ]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20).map(accumulate).map(list), st.data())
def test_a_server_may_go_back_to_any_task_of_a_model_that_is_not_large(
    rounds: list[int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memories = Memories(Path(folder), "run", 0)
        for number in rounds:
            memories.after(number, of(float(number)), number - 1)
        back = data.draw(st.sampled_from(range(len(rounds))))
        known = Memories(Path(folder), "run", 0).before(rounds[back], rounds[back] - 1)
        assert known.lasso_lambda == (float(rounds[back - 1]) if back else None)
        memories.after(rounds[back], of(-1.0), rounds[back] - 1)
        assert memories.before(10**6, 10**6 - 1).lasso_lambda == -1.0, (
            "what came of later rounds no longer holds"
        )


def test_what_is_on_the_disk_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = 4000
    monkeypatch.setattr(module, "_BYTES", 10 * each)
    memories = Memories(tmp_path, "run", 0)
    for number in range(1, 60):
        memories.after(
            number,
            WorkerMemory(0.5, Memory({"left": torch.full((900,), float(number))})),
            number - 1,
        )
    assert len(list(tmp_path.iterdir())) > 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * each
    monkeypatch.setattr(module, "_BYTES", 0)
    memories.after(60, WorkerMemory(0.5, Memory({"left": torch.full((900,), 60.0)})), 59)
    kept = [
        int(memories.before(number, number - 1).codec.tensors["left"][0])
        for number in range(58, 62)
    ]
    assert kept == [57, 58, 59, 60], "four tasks are remembered, however large they are"


def test_who_is_asked_for_more_than_it_remembers_says_so_and_keeps_its_lasso(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BYTES", 0)
    memories = Memories(tmp_path, "run", 0)
    for number in range(1, 9):
        memories.after(number, WorkerMemory(0.5, Memory({"left": torch.ones(2)})), number - 1)
    with pytest.warns(AdaptCLWarning, match=r"gone back to round 3.*smaller checkpoint_every"):
        known = Memories(tmp_path, "run", 0).before(3, 2)
    assert known == WorkerMemory(0.5)
    assert memories.before(1, 0) == WorkerMemory(), "before the first task nothing was known"


def test_a_codec_that_leaves_nothing_unsent_costs_one_file(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    for number in range(1, 30):
        memories.after(number, WorkerMemory(0.5), number - 1)
    assert len(list(tmp_path.iterdir())) == 1
    known = [memories.before(number, number - 1).lasso_lambda for number in (1, 2, 7, 30)]
    assert known == [None, 0.5, 0.5, 0.5]


def test_an_update_that_was_not_used_is_as_if_nothing_had_been_sent_by_it(tmp_path: Path) -> None:
    memories = Memories(tmp_path, "run", 0)
    memories.after(1, WorkerMemory(0.5, Memory({"left": torch.full((2,), 1.0)})), used=0)
    memories.after(2, WorkerMemory(0.5, Memory({"left": torch.full((2,), 2.0)})), used=1)
    again = memories.before(3, used=1)
    assert again.codec.tensors["left"].tolist() == [1.0, 1.0]
    assert memories.before(3, used=2).codec.tensors["left"].tolist() == [2.0, 2.0]
    nothing = memories.before(3, used=0)
    assert (nothing.lasso_lambda, nothing.codec.tensors) == (0.5, {}), "λ was found all the same"


def test_however_many_updates_are_not_used_what_was_left_before_them_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BYTES", 0)
    memories = Memories(tmp_path, "run", 0)
    memories.after(1, of(1.0), used=0)
    for number in range(2, 20):
        memories.after(number, of(float(number)), used=1)
    assert memories.before(20, used=1).codec.tensors["left"].tolist() == [1.0, 1.0]
    assert len(list(tmp_path.iterdir())) == 2
