"""Decides after each round whether a run ends before all its rounds are done.

A condition looks at the records of the rounds, so a resumed run that sees the same rounds decides
the same. A listener may ask for the end too (`events.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from adaptcl.records import TESTS, RoundRecord
from adaptcl.training.objectives.metrics import Measure

StopCondition = Callable[[Sequence[RoundRecord]], bool]
"""Whether a run ends with the last of these rounds, which may not be tested yet."""


def time_limit(seconds: float) -> StopCondition:
    """The run's clock has reached a time."""
    return lambda records: records[-1].virtual_time_s >= seconds


def target(value: float, measure: Measure) -> StopCondition:
    """The main metric has reached a value in the mean of the last tests, as comparisons judge.

    The first tests of a run are too few for that: one alone may be lucky.
    """

    def is_met(records: Sequence[RoundRecord]) -> bool:
        if records[-1].main_value is None:
            return False
        values = [each.main_value for each in records if each.main_value is not None]
        return len(values) >= TESTS and not measure.is_better(value, fmean(values[-TESTS:]))

    return is_met


def early_stopping(rounds: int, measure: Measure) -> StopCondition:
    """The best single test lies some rounds back. Only a round with a test can show that."""

    def is_met(records: Sequence[RoundRecord]) -> bool:
        if records[-1].main_value is None:
            return False
        best, best_round = measure.worst, 0
        for record in records:
            if record.main_value is not None and measure.is_better(record.main_value, best):
                best, best_round = record.main_value, record.round
        return records[-1].round - best_round >= rounds

    return is_met


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
        met = (name for name, each in self._conditions.items() if each(records))
        return next(met, self._asked_by)
