"""A task under way over the network, and where the time went when its answer is there."""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.engines.flower.fleet import Replied
from adaptcl.training import Task, Timing


@dataclass(frozen=True)
class OpenTask:
    """A task that a worker has been sent and has not answered."""

    task: Task
    message: str
    sent: float
    """When, by the fleet's clock."""
    size: int
    """In bytes."""

    def timing(self, reply: Replied, seconds: float) -> Timing:
        """The parts of the update time, of which the worker says only how long it trained: the
        total is what the server saw, whatever the worker says."""
        total = max(0.0, reply.arrived - self.sent)
        send = min(total, max(0.0, reply.received - self.sent))
        train = min(seconds, total - send)
        return Timing(send, train, total - send - train, self.size, len(reply.content))
