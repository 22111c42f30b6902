"""How many workers have to be there, and what those that are there hear of the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adaptcl.engines.network.messages import WAIT, waiting_frame
from adaptcl.engines.network.server.fleet import Fleet


@dataclass(frozen=True)
class Quorum:
    """With how many workers a run may begin and go on, and what becomes of the others."""

    begin: int
    seconds: float | None = None
    """How long the others are waited for once so many are there. None: as long as is reasonable for
    workers that were waited for before."""
    least: int = 1
    """With how many it goes on; with fewer it pauses."""
    had_time: bool = False  # whether those that are not connected have had all their time already

    def resumed(self) -> Quorum:
        """For a run that goes on where it was left."""
        return Quorum(self.least, least=self.least)


def tell_waiting(
    fleet: Fleet, there: Collection[int], missing: Collection[int], workers: int
) -> None:
    """Tell workers that are there how many of the others they wait for, if for any."""
    if missing:
        for worker in sorted(there):
            content = waiting_frame(worker, len(missing), workers - 1).to_bytes()
            fleet.send(worker, WAIT, content)
