"""What the server holds against a worker, and that a resumed run still knows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import snapshot
from adaptcl.engines.flower.conduct import STRIKES, Conduct, OtherDataError
from adaptcl.errors import AdaptCLError
from adaptcl.training import Update


def an_update(worker: int, samples: int) -> Update:
    return Update(worker, 1, {}, torch.ones(1, dtype=torch.bool), samples, 0.5)


def test_the_number_of_samples_stays_that_of_the_first_answer_that_was_used() -> None:
    conduct = Conduct(2)
    conduct.check(an_update(0, 7))
    conduct.check(an_update(0, 9))
    conduct.approve(an_update(0, 9))
    conduct.check(an_update(0, 9))
    conduct.check(an_update(1, 10))
    with pytest.raises(
        OtherDataError, match=r"worker 0 has 10 samples, but it had 9 when it began"
    ):
        conduct.check(an_update(0, 10))


def test_only_useless_answers_in_a_row_count() -> None:
    conduct = Conduct(2)
    for _ in range(STRIKES - 1):
        conduct.blame(0, "it is noise.")
    conduct.approve(an_update(0, 9))
    for _ in range(STRIKES - 1):
        conduct.blame(0, "it is noise.")
    assert not conduct.is_out(0)
    conduct.blame(0, "it is worse.")
    assert conduct.is_out(0)
    assert conduct.refusal(0) == "it is worse."


def test_as_long_as_one_worker_is_left_there_is_somebody_to_wait_for() -> None:
    conduct = Conduct(2)
    for _ in range(STRIKES):
        conduct.blame(0, "it is noise.")
    conduct.refuse_to_wait_in_vain()
    for _ in range(STRIKES):
        conduct.blame(1, "it has diverged.")
    with pytest.raises(AdaptCLError, match=r"No worker is left: .* it has diverged\."):
        conduct.refuse_to_wait_in_vain()


def test_all_of_it_survives_a_checkpoint(tmp_path: Path) -> None:
    before, after = Conduct(2), Conduct(2)
    before.approve(an_update(1, 9))
    for _ in range(STRIKES):
        before.blame(0, "it is noise.")
    snapshot.save(tmp_path / "file", before.snapshot())
    after.restore(snapshot.load(tmp_path / "file"))
    assert (after.is_out(0), after.is_out(1), after.refusal(0)) == (True, False, "it is noise.")
    after.check(an_update(1, 9))
    with pytest.raises(OtherDataError):
        after.check(an_update(1, 8))
    after.restore({"strikes": [0, 0]})
