"""The last message to all workers: that the job is over, or why the server cannot go on."""

from __future__ import annotations

from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import dismissal
from adaptcl.engines.network.messages import INVITE
from adaptcl.engines.network.server.fleet import Came, Fleet, Left, Replied
from adaptcl.errors import AdaptCLError

GOODBYE_S = 30.0  # how long to wait at least for connected workers to hear that the job is over


def dismiss_all(fleet: Fleet, error: Exception, seconds: float) -> None:
    """End all connected workers, and tell their owners why the server cannot go on."""
    reason = str(error)
    if not isinstance(error, AdaptCLError):
        reason = f"it has failed ({type(error).__name__})."
    tell_all(fleet, INVITE, dismissal(reason), seconds)


def tell_all(fleet: Fleet, kind: str, last: Frame, seconds: float) -> None:
    """Send a last message to all connected workers, and wait for so long until they have it."""
    content = last.to_bytes()
    waiting = {worker: fleet.send(worker, kind, content) for worker in fleet.connected}
    until = fleet.now() + seconds
    while waiting and fleet.now() < until:
        for event in fleet.wait(0.2):
            match event:
                case Left(worker):
                    waiting.pop(worker, None)
                case Replied(worker, message) if waiting.get(worker) == message:
                    del waiting[worker]
                case Came(worker):
                    waiting[worker] = fleet.send(worker, kind, content)
