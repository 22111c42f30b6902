"""What the server holds against a worker, for how long, and what a resumed run still knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import storage as snapshot
from adaptcl.engines.network.server.conduct import STRIKES, Conduct, OtherDataError
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
    assert not conduct.is_out(1)


def test_a_worker_that_is_out_is_told_why_and_what_its_owner_can_do() -> None:
    conduct = Conduct(1)
    conduct.blame(0, "it is noise.")
    assert conduct.farewell(0) == "it is noise."
    for _ in range(STRIKES - 1):
        conduct.blame(0, "it is worse.")
    assert conduct.farewell(0) == (
        "it is worse. It gets no more tasks after 3 such answers in a row; start it again when "
        "that is mended."
    )


def test_a_worker_that_was_started_again_begins_anew() -> None:
    conduct = Conduct(2)
    for worker in (0, 1):
        for _ in range(STRIKES):
            conduct.blame(worker, "it is noise.")
    conduct.forgive(0)
    assert (conduct.is_out(0), conduct.is_out(1)) == (False, True)
    conduct.blame(0, "it is noise.")
    assert not conduct.is_out(0)


def test_between_the_tries_of_a_failing_worker_there_is_ever_more_time_but_no_eternity() -> None:
    conduct = Conduct(1)
    pauses = []
    for _ in range(9):
        conduct.blame(0, "its disk is full.")
        pauses.append(conduct.pause(0))
    assert pauses[:4] == [5, 20, 60, 60]
    assert set(pauses[4:]) == {60}


def test_as_long_as_one_worker_is_left_there_is_somebody_to_wait_for() -> None:
    conduct = Conduct(2)
    for _ in range(STRIKES):
        conduct.blame(0, "it is noise.")
    conduct.refuse_to_wait_in_vain()
    for _ in range(STRIKES):
        conduct.blame(1, "it has diverged.")
    with pytest.raises(AdaptCLError, match=r"No worker is left: .* it has diverged\."):
        conduct.refuse_to_wait_in_vain()


def test_what_a_worker_has_is_remembered_by_a_checkpoint_and_its_failures_are_not(
    tmp_path: Path,
) -> None:
    before, after = Conduct(2), Conduct(2)
    before.approve(an_update(1, 9))
    for _ in range(STRIKES):
        before.blame(0, "it is noise.")
    snapshot.save(tmp_path / "file", before.snapshot())
    after.restore(snapshot.load(tmp_path / "file"))
    assert not after.is_out(0)
    after.check(an_update(1, 9))
    with pytest.raises(OtherDataError):
        after.check(an_update(1, 8))
