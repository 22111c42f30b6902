"""Decides after each round whether a run ends before all its rounds are done.

A condition looks at the records of the rounds, so a resumed run that sees the same rounds decides
the same. A listener may ask for the end too (`listeners.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from adaptcl.records import RoundRecord
from adaptcl.training.metrics import Measure


class StopCondition(Protocol):
    """One reason to end a run. It sees all rounds in order, each before its test and after it."""

    def is_met(self, record: RoundRecord) -> bool: ...


@dataclass(frozen=True)
class TimeLimit:
    """The run's clock has reached a time."""

    seconds: float

    def is_met(self, record: RoundRecord) -> bool:
        return record.virtual_time_s >= self.seconds


@dataclass(frozen=True)
class Target:
    """The main metric of a test has reached a value."""

    value: float
    measure: Measure

    def is_met(self, record: RoundRecord) -> bool:
        found = record.main_value
        return found is not None and not self.measure.is_better(self.value, found)


class EarlyStopping:
    """The best test lies some rounds back. Only a round with a test can show that."""

    def __init__(self, rounds: int, measure: Measure) -> None:
        self._rounds = rounds
        self._measure = measure
        self._best = measure.worst
        self._best_round = 0

    def is_met(self, record: RoundRecord) -> bool:
        found = record.main_value
        if found is None:
            return False
        if self._measure.is_better(found, self._best):
            self._best, self._best_round = found, record.round
        return record.round - self._best_round >= self._rounds


class StopRule:
    """Ends a run after the round in which one of its conditions is met, or the end is asked for."""

    def __init__(self, conditions: Mapping[str, StopCondition] | None = None) -> None:
        """`conditions` by the name that the summary shows."""
        self._conditions = conditions or {}
        self._asked_by: str | None = None
        self.stopped_by: str | None = None  # why the run ends; None as long as it goes on

    def ask(self, who: str) -> None:
        """Ask for the end after the round that is running."""
        self._asked_by = self._asked_by or who

    def ends_with(self, untested: RoundRecord) -> bool:
        """Whether a round is the last, as far as can be said before its test."""
        return self._reason(untested) is not None

    def see(self, record: RoundRecord) -> None:
        """Look at a closed round."""
        self.stopped_by = self._reason(record)

    def restore(self, records: Iterable[RoundRecord], stopped_by: str | None) -> None:
        """Go on after these rounds; `stopped_by` is what this rule had said after the last."""
        for record in records:
            self.see(record)
        self.stopped_by = stopped_by

    def _reason(self, record: RoundRecord) -> str | None:
        # All conditions see all rounds, whichever is the first to be met.
        met = [name for name, each in self._conditions.items() if each.is_met(record)]
        return next(iter(met), self._asked_by)
