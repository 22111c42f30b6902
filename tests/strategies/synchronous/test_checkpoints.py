"""A synchronous run goes on from a checkpoint, late updates and draws included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from adaptcl import storage as snapshot
from adaptcl.strategies import Job, Reaction
from adaptcl.strategies.synchronous import Synchronous, SynchronousSettings
from adaptcl.training import Arrival

if TYPE_CHECKING:
    from tests.strategies.synchronous.conftest import Overdue

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]

PLAIN = SynchronousSettings()
FEW = SynchronousSettings(participants=3)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    halves: type[Synchronous], with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path, stop: int
) -> None:
    job = with_batch_norm(3, 5)
    whole = timeline(halves(job, PLAIN), [3.0, 2.0, 1.0]).start().run()
    broken = timeline(halves(job, PLAIN), [3.0, 2.0, 1.0]).start().run(stop)
    resumed = broken.resumed(halves(job, PLAIN), tmp_path).run()
    assert resumed.closed == whole.closed
    assert resumed.now == whole.now
    one, other = whole.strategy.model(), resumed.strategy.model()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("late_updates", ["count", "drop"])
def test_a_late_task_is_resumed_with_the_model_it_was_given(
    overdue: Overdue, answered: Answers, tmp_path: Path, late_updates: str
) -> None:
    rounds = overdue(late_updates)
    closing = rounds.take(rounds.strategy.expired())
    snapshot.save(tmp_path / "file", rounds.strategy.snapshot())
    resumed = Synchronous(rounds.strategy.job, rounds.strategy.settings)
    resumed.restore(snapshot.load(tmp_path / "file"))
    for one, other in zip(rounds.strategy.outstanding(), resumed.outstanding(), strict=True):
        assert (one.worker, one.round) == (other.worker, other.round)
        assert torch.equal(one.state["weight"], other.state["weight"])
    assert closing.deadline is not None

    def went_on(strategy: Synchronous) -> tuple[float, Reaction]:
        tasks = {task.worker: task for task in strategy.outstanding()}
        for worker, sent in ((2, 40.0), (0, 10.0), (1, 12.0)):
            state = {"weight": torch.tensor([[sent]])}
            reaction = strategy.receive(answered(tasks[worker], state, seconds=worker + 1))
        return float(strategy.model()["weight"]), reaction

    uninterrupted, after = went_on(rounds.strategy), went_on(resumed)
    assert uninterrupted[0] == after[0]
    assert uninterrupted[1].closed == after[1].closed
    assert uninterrupted[1].deadline == after[1].deadline


def test_a_snapshot_does_not_change_when_the_run_goes_on(
    halves: type[Synchronous], with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    run = timeline(halves(with_batch_norm(3, 5), PLAIN), [3.0, 2.0, 1.0]).start().run(2)
    tree = run.strategy.snapshot()
    snapshot.save(tmp_path / "before", tree)
    run.run()
    snapshot.save(tmp_path / "after", tree)
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_a_resumed_run_draws_as_it_would_have_done(
    halves: type[Synchronous], with_batch_norm: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    times = [float(10 - worker) for worker in range(8)]
    run = timeline(halves(with_batch_norm(8, 7), FEW), times).start().run(3)
    again = run.resumed(halves(with_batch_norm(8, 7), FEW), tmp_path).run()
    run.run()
    assert again.closed == run.closed
    assert all(len(closed.participants) == 3 for closed in run.closed)
    one, other = run.strategy.model(), again.strategy.model()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
