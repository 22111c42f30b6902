"""What the server knows of its nodes and their messages: Flower's link state, for one run.

Flower's is made for a server that runs anything for anybody. Here one process asks it about the one
run that it is there for.

Flower also keeps what is inside each part of a message, as whoever named the part first described
it. Parts that hold each other many times over would fill any memory, and parts that somebody
described wrongly would never be deleted. The store here keeps which parts each message has, and a
part as long as a message has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.date import now
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore, ObjectEntry

from adaptcl.engines.network.frames import parts_of, tree_of
from adaptcl.errors import UpdateError


class RunLinkState(InMemoryLinkState):
    """Flower's link state, for one run."""

    def _cleanup_expired_task_tokens_locked(self) -> None:
        """Never end the run.

        Flower ends a run after a silent minute, because the process behind it may be gone. Here
        that process is this one. After a pause, or when the clock is set, it would find its run
        ended and all workers refused.
        """

    def answers_to(self, messages: Iterable[str]) -> list[Message]:
        """The answers to these messages that workers have announced.

        Flower, asked for the answer of a node that is gone, makes one up and stores it each time.
        """
        with self.lock:
            names = [self.message_ins_id_to_message_res_id.get(each) for each in messages]
            return [self.message_res_store[name] for name in names if name is not None]

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Note an answer that a worker announces; gives whether it is wanted, and which parts
        are missing."""
        try:
            stored, missing = super().store_message_and_object_tree(
                message, object_tree, session_id
            )
        except UpdateError:
            stored, missing = False, []  # announced before, with other parts
        if not missing:
            # Flower would keep the session until the last part comes.
            self._cleanup_push_session(session_id, cleanup_messages=False)
        return stored, missing

    def forget(self, message: str) -> None:
        """Delete a message and whatever has come in answer to it.

        A worker that is still sending does not hear of it, so its session stays until it is done.
        """
        with self.lock:
            answer = self.message_ins_id_to_message_res_id.get(message)
            self.delete_messages({message})
            for each in (message, answer):
                if each is not None:
                    self.object_store.delete(each)

    def forget_senders(self) -> None:
        """End the sessions of workers that stopped in the middle of sending.

        Flower does it when somebody asks for what is missing, and here nobody does.
        """
        with self._lock_object_push_sessions:
            current = now()
            for session, each in list(self._object_push_sessions.items()):
                if each.expires_at <= current:
                    self._cleanup_push_session(session, cleanup_messages=False)


class MessageParts(InMemoryObjectStore):
    """Flower's store of objects, for messages that share parts and come and go at any moment.

    Equal parts of different messages are stored once, such as the answers of all workers to their
    invitations.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, list[str]] = {}  # the parts of each message

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Reserve the parts of a message, all or none; gives those that are missing."""
        parts = parts_of(object_tree)
        with self.lock_store:
            if self._messages.setdefault(object_tree.object_id, parts) is parts:
                for part in parts:
                    entry = self.store.setdefault(part, ObjectEntry(b"", False, [], 0, {run_id}))
                    entry.ref_count += 1
            elif self._messages[object_tree.object_id] != parts:
                raise UpdateError("A message has been announced with other parts before.")
            return [part for part in parts if not self.store[part].is_available]

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store a part, unless no message needs it any more.

        An answer's last missing part may come from another worker. Then the answer is read and
        deleted while its worker still sends, and that worker has done nothing wrong.
        """
        with suppress(NoObjectInStoreError):
            super().put(object_id, object_content)

    def get_object_tree(self, object_id: str) -> ObjectTree:
        with self.lock_store:
            if object_id not in self._messages:
                raise NoObjectInStoreError(f"There is no message {object_id}.")
            return tree_of(self._messages[object_id])

    def whole(self, message: str) -> dict[str, bytes] | None:
        """All parts of a message; None while one is missing."""
        with self.lock_store:
            if not self.get(message):
                return None  # it is sent last, so the others need not be looked at
            contents = {part: self.store[part].content for part in self._messages.get(message, ())}
            return contents if contents and all(contents.values()) else None

    def delete(self, object_id: str) -> None:
        """Delete a message, and those of its parts that no other message has."""
        with self.lock_store:
            for part in self._messages.pop(object_id, ()):
                self.store[part].ref_count -= 1
                if not self.store[part].ref_count:
                    del self.store[part]

    def delete_objects_in_run(self, run_id: int) -> None:
        """There is only one run."""
        self.clear()

    def clear(self) -> None:
        with self.lock_store:
            self._messages.clear()
            super().clear()
