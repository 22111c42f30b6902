"""What AdaptCL has learned about its workers survives in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from adaptcl import storage as snapshot

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Changed, Engines, Lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"grow": True},
        {"literal_algorithm_2": True},
        {"pruned_rates": ((0.5, 0.3, 0.0), (0.2, 0.0, 0.1))},
        {"pruning": "no-constant", "aggregation": "by-unit"},
    ],
)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    engine: Engines,
    changing: Lines,
    shuffled_scales: Changed,
    tmp_path: Path,
    settings: dict[str, Any],
) -> None:
    times = changing((60, 40, 20), (30, 90, 20), at=11)
    whole = engine(times, changed=shuffled_scales, **settings).until(20)
    broken = engine(times, changed=shuffled_scales, **settings)
    for stop in (2, 3, 6, 13):
        after = broken.until(stop).resumed(tmp_path).until(20)
        assert after.closed == whole.closed
        assert after.retentions() == whole.retentions()
        one, other = whole.strategy.model(), after.strategy.model()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_snapshot_does_not_change_when_the_run_goes_on(
    engine: Engines, line: Lines, tmp_path: Path
) -> None:
    run = engine(line(60, 40, 20)).until(5)
    tree = run.strategy.snapshot()
    snapshot.save(tmp_path / "before", tree)
    run.until(6)
    snapshot.save(tmp_path / "after", tree)
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
