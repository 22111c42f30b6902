"""What the server's process knows of its nodes and their messages: Flower's link state.

Flower's is made for a server that others talk to, and that may run anything for anybody. Here one
process asks it questions about the one run that it is there for.
"""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.server.superlink.linkstate import InMemoryLinkState


class Link(InMemoryLinkState):
    """Flower's link state, for one run."""

    def _cleanup_expired_task_tokens_locked(self) -> None:
        """End no run of which nothing has been heard for a minute.

        Flower would, to notice that the process behind a run is gone. That process is this one,
        and after a pause, or where the clock is set, it would find its run ended and all workers
        refused.
        """

    def answers_to(self, messages: Iterable[str]) -> list[Message]:
        """The answers to these messages that have been announced.

        Where Flower is asked for answers of a node that has gone, it makes one up and stores it,
        each time.
        """
        with self.lock:
            names = [self.message_ins_id_to_message_res_id.get(each) for each in messages]
            return [self.message_res_store[name] for name in names if name is not None]
