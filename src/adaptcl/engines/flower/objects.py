"""The server's store of the parts of messages, its own and its workers'.

Flower's own keeps of each part what is inside of it, as whoever was the first to name the part has
said. Parts inside of each other many times over would have it spell out more than any memory
holds, and parts that others have described wrongly would never be deleted. This one keeps of each
message which parts it has, and a part for as long as a message has it.
"""

from __future__ import annotations

from contextlib import suppress

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore, ObjectEntry

from adaptcl.engines.flower.parts import parts_of, tree_of
from adaptcl.errors import UpdateError


class Objects(InMemoryObjectStore):
    """Flower's store of objects, for messages that share some and come and go at any moment.

    Equal objects of different messages, such as the answers of all workers to their invitations,
    are stored once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, list[str]] = {}
        """The parts of each message."""

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Lay claim to the parts of a message, all or none; gives those that are missing."""
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
        """Store an object, unless no message needs it any more.

        When an answer's last missing part comes from another worker, the answer is read and
        deleted while its own worker still sends. That worker has done nothing wrong.
        """
        with suppress(NoObjectInStoreError):
            super().put(object_id, object_content)

    def get_object_tree(self, object_id: str) -> ObjectTree:
        """The parts of a message, as they were announced."""
        with self.lock_store:
            if object_id not in self._messages:
                raise NoObjectInStoreError(f"There is no message {object_id}.")
            return tree_of(self._messages[object_id])

    def whole(self, message: str) -> dict[str, bytes] | None:
        """All parts of a message; None as long as one is missing."""
        with self.lock_store:
            if not self.get(message):
                return None  # It is sent last, so there is no need to look through all the others.
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
        """Delete everything, because there is only one run."""
        self.clear()

    def clear(self) -> None:
        """Delete everything."""
        with self.lock_store:
            self._messages.clear()
            super().clear()
