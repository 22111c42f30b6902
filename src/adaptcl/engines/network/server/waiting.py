"""Workers that the server waits for: how long, and how often it says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_FIRST_S, _RAREST_S = 30.0, 3600.0
_NAMED = 10

_LEAST_WAIT_S = 30.0  # as long as a worker may be silent, unless its owner says otherwise


class Reminder:
    """Names the workers that are waited for: often at first, then more and more rarely."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = _FIRST_S
        self._due: float | None = None

    def about(self, workers: Collection[int]) -> str:
        """A sentence about the workers that are waited for, or nothing if it is too early."""
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
        """Seconds until there is something to say; at most a minute."""
        return 60.0 if self._due is None else max(0.0, min(60.0, self._due - self._clock()))


def named(workers: Collection[int]) -> str:
    if len(workers) == 1:
        return f"worker {next(iter(workers))}"
    words = [str(worker) for worker in sorted(workers)[:_NAMED]]
    if len(workers) > _NAMED:
        words.append(f"{len(workers) - _NAMED} others")
    return f"workers {', '.join(words[:-1])} and {words[-1]}"


def longest_wait(
    missing: Collection[int],
    connected: Collection[int],
    patience: float,
    update_times: Sequence[float],
) -> float:
    """Seconds to wait for workers that took part before, when a run is resumed or a job's next run
    begins. One that never comes must not hold up the rest.

    A connected worker gets the `patience` for a task. Another may still be training for a server
    that was killed, and finds out only when it is done.
    """
    return_s = min(patience, max(_LEAST_WAIT_S, 2 * max(update_times)))
    return max(patience if worker in connected else return_s for worker in missing)


def going_on_without(missing: Collection[int]) -> str:
    verb, them = ("has", "it is") if len(missing) == 1 else ("have", "they are")
    return (
        f"The run goes on without {named(missing)}, which {verb} not come; {them} taken back at "
        "any time."
    )
