"""Who is there before the first round, and what those that are there hear of the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adaptcl.engines.network.messages import WAIT, waiting_frame
from adaptcl.engines.network.server.fleet import Fleet


@dataclass(frozen=True)
class Quorum:
    """With how many workers a run may begin, and what becomes of the others."""

    least: int
    seconds: float | None = None
    """How long the others are waited for once so many are there. None: as long as is reasonable for
    workers that were waited for before."""


def tell_waiting(
    fleet: Fleet, there: Collection[int], missing: Collection[int], workers: int
) -> None:
    """Tell workers that are there how many of the others they wait for, if for any."""
    if missing:
        for worker in sorted(there):
            content = waiting_frame(worker, len(missing), workers - 1).to_bytes()
            fleet.send(worker, WAIT, content)
