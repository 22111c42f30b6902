"""Whom the server waits for, said now and then: often at first, and then ever more rarely."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

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


# How long a run waits for workers that have taken part before: when a server goes on with it, or
# when the same workers do one run after the other. One that never comes must not hold up the
# rest.

_LEAST_S = 30.0
"""As long as a worker's silence may last, unless its owner says otherwise."""


def longest_wait(
    missing: Collection[int],
    connected: Collection[int],
    patience: float,
    update_times: Sequence[float],
) -> float:
    """How many seconds the missing workers are worth.

    Who is connected is held to the `patience` for a task. Who is not may still be training for a
    server that was killed, and finds out only when it is done.
    """
    return_s = min(patience, max(_LEAST_S, 2 * max(update_times)))
    return max(patience if worker in connected else return_s for worker in missing)


def going_on_without(missing: Collection[int]) -> str:
    """What is said when that time is over."""
    verb, them = ("has", "it is") if len(missing) == 1 else ("have", "they are")
    return (
        f"The run goes on without {named(missing)}, which {verb} not come; {them} taken back at "
        "any time."
    )
