"""How long a run waits for workers that have taken part before: when a server goes on with it, or
when the same workers do one run after the other. One that never comes must not hold up the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from adaptcl.engines.flower.reminder import named

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
