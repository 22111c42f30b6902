"""What the server's log says of those it has turned away: a line each, but no flood of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_AGAIN_S = 600.0
"""How long the same is not said again."""

_LINES = 20
"""At most, in that time."""


@dataclass(frozen=True)
class TurnedAway:
    """Somebody was not let in."""

    sentence: str


class Log:
    """Passes on what is worth a line."""

    def __init__(self, tell: Callable[[TurnedAway], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._said: dict[str, float] = {}

    def note(self, sentence: str) -> None:
        """Somebody was turned away; called for every single time."""
        now = self._clock()
        self._said = {each: at for each, at in self._said.items() if now - at < _AGAIN_S}
        if sentence not in self._said and len(self._said) < _LINES:
            self._said[sentence] = now
            self._tell(TurnedAway(sentence))
