"""Decides after each round whether a run ends before all its rounds are done.

A condition looks at the records of the rounds, so a resumed run that sees the same rounds decides
the same. A listener may ask for the end too (`listeners.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from adaptcl.records import TESTS, RoundRecord
from adaptcl.training.objectives.metrics import Measure


class StopCondition(Protocol):
    """One reason to end a run."""

    def is_met(self, records: Sequence[RoundRecord]) -> bool:
        """Whether a run ends with the last of these rounds, which may not be tested yet."""
        ...


@dataclass(frozen=True)
class TimeLimit:
    """The run's clock has reached a time."""

    seconds: float

    def is_met(self, records: Sequence[RoundRecord]) -> bool:
        return records[-1].virtual_time_s >= self.seconds


@dataclass(frozen=True)
class Target:
    """The main metric has reached a value in the mean of the last tests, as comparisons judge."""

    value: float
    measure: Measure

    def is_met(self, records: Sequence[RoundRecord]) -> bool:
        if records[-1].main_value is None:
            return False
        values = [each.main_value for each in records if each.main_value is not None]
        return not self.measure.is_better(self.value, fmean(values[-TESTS:]))


@dataclass(frozen=True)
class EarlyStopping:
    """The best test lies some rounds back. Only a round with a test can show that."""

    rounds: int
    measure: Measure

    def is_met(self, records: Sequence[RoundRecord]) -> bool:
        last = records[-1]
        if last.main_value is None:
            return False
        best, best_round = self.measure.worst, 0
        for record in records:
            if record.main_value is not None and self.measure.is_better(record.main_value, best):
                best, best_round = record.main_value, record.round
        return last.round - best_round >= self.rounds


class StopRule:
    """Ends a run after the round in which one of its conditions is met, or the end is asked for."""

    def __init__(self, conditions: Mapping[str, StopCondition] | None = None) -> None:
        """`conditions` by the name that the summary shows."""
        self._conditions = conditions or {}
        self._seen: list[RoundRecord] = []
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
        self._seen.append(record)

    def restore(self, records: Iterable[RoundRecord], stopped_by: str | None) -> None:
        """Go on after these rounds; `stopped_by` is what this rule had said after the last."""
        self._seen = list(records)
        self.stopped_by = stopped_by

    def _reason(self, record: RoundRecord) -> str | None:
        records = [*self._seen, record]
        met = (name for name, each in self._conditions.items() if each.is_met(records))
        return next(met, self._asked_by)
