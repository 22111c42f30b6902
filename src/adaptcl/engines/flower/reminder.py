"""Whom the server waits for, said now and then: often at first, and then ever more rarely."""

from __future__ import annotations

from collections.abc import Callable, Collection

_FIRST_S, _RAREST_S = 30.0, 3600.0
_NAMED = 10


class Reminder:
    """For one wait after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = _FIRST_S
        self._due: float | None = None

    def about(self, workers: Collection[int]) -> str:
        """A sentence, if it is time for one about the workers that are waited for; else nothing."""
        if not workers:
            self._pause, self._due = _FIRST_S, None
        elif self._due is None:
            self._due = self._clock() + self._pause
        elif self._clock() >= self._due:
            self._pause = min(_RAREST_S, 2 * self._pause)
            self._due = self._clock() + self._pause
            return f"Still waiting for {named(workers)}."
        return ""

    def due_in(self) -> float:
        """How many seconds until there is something to say; no more than a minute."""
        return 60.0 if self._due is None else max(0.0, min(60.0, self._due - self._clock()))


def named(workers: Collection[int]) -> str:
    """Some workers, in words; of many of them the first."""
    if len(workers) == 1:
        return f"worker {next(iter(workers))}"
    words = [str(worker) for worker in sorted(workers)[:_NAMED]]
    if len(workers) > _NAMED:
        words.append(f"{len(workers) - _NAMED} others")
    return f"workers {', '.join(words[:-1])} and {words[-1]}"
