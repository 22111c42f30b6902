"""How far a mean update time may be off by chance, on a clock that is never twice the same.

Of a few times their own spread says little: of one nothing at all, and of two it is small by chance
often enough that equal workers would be pruned for it. But how much times vary is much the same for
all workers of a run, so a worker's own spread counts together with what is typical of everybody:
at first an assumption, then what repeated times have shown. On a clock without noise there is
nothing to assume, and a spread is a change of conditions, which is a worker's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from adaptcl.snapshot import Tree

TYPICAL_NOISE = 0.1
"""The relative spread that is assumed of a real clock until it is known: of a link that others use,
of a processor that has other things to do."""

_WORTH = 4.0
"""What is typical of everybody counts as much as so many more times of the worker itself."""

_ENOUGH = 8
"""Pairs of times of the same task from which what is typical can be told."""

_MEDIAN_STEP = 0.6745 * math.sqrt(2)
"""The median distance of two draws from a normal distribution, in its standard deviations."""


class Noise:
    """What a run knows of the noise of its clock."""

    def __init__(self, assumed: float) -> None:
        """`assumed` is the relative spread of equal tasks' times; 0 for a clock without noise."""
        self._typical = assumed
        self._is_exact = assumed == 0
        self._steps: list[float] = []
        """From one time to the next of the same task, as absolute log ratios."""

    def watch(self, repeated: Iterable[Sequence[float]]) -> None:
        """Learn what is typical from each worker's times of one sub-model."""
        if self._is_exact:
            return
        for times in repeated:
            usable = [time for time in times if math.isfinite(time) and time > 0]
            self._steps += [abs(math.log(second / first)) for first, second in pairwise(usable)]
        if len(self._steps) >= _ENOUGH:
            # The median, because a worker that has really changed must not speak for all.
            self._typical = statistics.median(self._steps) / _MEDIAN_STEP
            self._steps = []

    def error(self, times: Sequence[float]) -> float:
        """How far the mean of these times may be off, as a standard error."""
        count = len(times)
        spread = statistics.stdev(times) if count > 1 else 0.0
        if not self._is_exact:
            typical = self._typical * statistics.fmean(times)
            own = (count - 1) * spread**2
            spread = math.sqrt((_WORTH * typical**2 + own) / (_WORTH + count - 1))
        return spread / math.sqrt(count)

    def snapshot(self) -> Tree:
        """All that is needed to go on."""
        return {"typical": self._typical, "steps": list(self._steps)}

    def restore(self, tree: Tree) -> None:
        """Go on from a snapshot."""
        self._typical = tree["typical"]
        self._steps = tree["steps"]
