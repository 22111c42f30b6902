"""What the server's process knows of its nodes and their messages: Flower's link state.

Flower's is made for a server that others talk to, and that may run anything for anybody. Here one
process asks it questions about the one run that it is there for.
"""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.date import now

from adaptcl.errors import UpdateError


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

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Take note of an answer that a worker announces; gives whether it is wanted, and which
        of its parts are."""
        try:
            stored, missing = super().store_message_and_object_tree(
                message, object_tree, session_id
            )
        except UpdateError:
            stored, missing = False, []  # It was announced before, with other parts.
        if not missing:
            # Flower would keep the session until the last part comes.
            self._cleanup_push_session(session_id, cleanup_messages=False)
        return stored, missing

    def forget(self, message: str) -> None:
        """Delete a message and whatever has come in answer to it.

        A worker that is still sending is not told, so its session stays until it has done so.
        """
        with self.lock:
            answer = self.message_ins_id_to_message_res_id.get(message)
            self.delete_messages({message})
            for each in (message, answer):
                if each is not None:
                    self.object_store.delete(each)

    def forget_senders(self) -> None:
        """Give up the sessions of those who stopped in the middle of sending.

        Flower would do so when somebody asks for what they have not sent, and nobody does.
        """
        with self._lock_object_push_sessions:
            current = now()
            for session, each in list(self._object_push_sessions.items()):
                if each.expires_at <= current:
                    self._cleanup_push_session(session, cleanup_messages=False)
