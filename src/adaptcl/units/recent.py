"""The last few results of something worth working out only once, safe to share among threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Recent:
    """Remembers the results asked for most recently, and forgets the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` gave for this key, now or before.

        Two threads may both make it; one of the results is then kept.
        """
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                found: Value = self._known[key]
                return found
        made = make()
        with self._lock:
            self._known[key] = made
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._known)
