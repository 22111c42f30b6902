"""What is known of a worker that went away and came back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import adaptcl
from adaptcl.events import Event, UpdateArrived

LEAVES, RETURNS = 100.0, 101.0


def test_no_time_of_it_is_known_before_its_next_update(tmp_path: Path) -> None:
    """It may come back quite another; without a barrier, rounds close while it is at work."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "time_s,worker,bandwidth,speed,available\n"
        f"{LEAVES},0,1,1,0\n"
        f"{RETURNS},0,1,0.1,1\n"
    )  # fmt: skip
    heard: list[Event] = []
    data = torch.randn(24, 5), torch.arange(24) % 3
    result = adaptcl.run(
        nn.Linear(5, 3), data, data, listeners=[heard.append], strategy="fedasync-s",
        workers=3, rounds=8, epochs=1, profile_epochs=1.0, train_time=20.0, trace=str(trace),
    )  # fmt: skip
    of_it = [e.virtual_time_s for e in heard if isinstance(e, UpdateArrived) and e.worker == 0]
    first, again = of_it[0], min(time for time in of_it if time > RETURNS)
    assert first < LEAVES
    known = {
        record.virtual_time_s: record.heterogeneity is not None
        for record in result.rounds
        if record.virtual_time_s > first
    }
    assert any(RETURNS < time < again for time in known)
    assert known == {time: not RETURNS < time < again for time in known}
