"""When a stop rule ends a run: after the round in which a condition is met."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from adaptcl.engines.stop_rule import StopCondition, StopRule, early_stopping, target, time_limit
from adaptcl.records import RoundRecord
from adaptcl.training.objectives.metrics import LOWER, Measure

ACCURACY, RMSE = Measure(), Measure("rmse", LOWER)


def rounds(*accuracies: float | None) -> list[RoundRecord]:
    """Rounds of ten seconds each, with these accuracies."""
    return [
        RoundRecord(number, 10.0 * number, accuracy, None, ())
        for number, accuracy in enumerate(accuracies, 1)
    ]


def last_round(condition: StopCondition, records: Sequence[RoundRecord]) -> int | None:
    """The round after which the rule ends the run; None if it never does."""
    rule = StopRule({"it": condition})
    for record in records:
        rule.see(record)
        if rule.stopped_by is not None:
            assert rule.stopped_by == "it"
            return record.round
    return None


@pytest.mark.parametrize(
    ("condition", "accuracies", "expected"),
    [
        (time_limit(20.0), (0.1, None, 0.1), 2),
        (time_limit(25.0), (0.1, None, 0.1), 3),
        (time_limit(31.0), (0.1, None, 0.1), None),
        (target(0.5, ACCURACY), (0.4, None, 0.6, 0.5, 0.5, 0.5), 6),
        (target(0.5, ACCURACY), (0.4, 0.5, 0.5, 0.5, 0.5, None), None),
        (target(0.5, RMSE), (0.7, None, 0.5, 0.6, 0.5, 0.5, 0.3), 7),
        # Few lucky tests are no result, and the mean of five forgets the first.
        (target(0.5, ACCURACY), (0.9, 0.9, 0.9, 0.9), None),
        (target(0.5, ACCURACY), (0.3, 0.6, 0.4, 0.5, 0.5, 0.5), 6),
        (early_stopping(2, RMSE), (0.3, 0.1, 0.2, 0.3), 4),
        (early_stopping(2, ACCURACY), (0.1, 0.3, 0.2, 0.3, 0.9), 4),
        (early_stopping(2, ACCURACY), (0.1, 0.1, 0.2, 0.1, 0.3), None),
        (early_stopping(2, ACCURACY), (0.0, 0.0, 0.0), 3),
        # No test, no verdict: round 6 is the first to show that round 3 was not surpassed.
        (early_stopping(2, ACCURACY), (None, None, 0.3, None, None, 0.3), 6),
    ],
)
def test_a_run_ends_after_the_round_in_which_the_condition_is_met(
    condition: StopCondition, accuracies: Sequence[float | None], expected: int | None
) -> None:
    assert last_round(condition, rounds(*accuracies)) == expected


def test_without_conditions_a_run_goes_on() -> None:
    rule = StopRule()
    for record in rounds(0.1, 0.1, 0.1):
        assert not rule.ends_with(record)
        rule.see(record)
    assert rule.stopped_by is None


def test_the_end_that_somebody_asks_for_comes_after_the_round() -> None:
    rule = StopRule()
    (record,) = rounds(0.1)
    rule.ask("listener: first")
    rule.ask("listener: second")
    assert rule.stopped_by is None
    assert rule.ends_with(record)
    rule.see(record)
    assert rule.stopped_by == "listener: first"


def test_only_the_time_is_known_before_the_test() -> None:
    rule = StopRule({"time": time_limit(20.0), "target": target(0.5, ACCURACY)})
    first, second = rounds(None, None)
    assert not rule.ends_with(first)
    assert rule.ends_with(second)


def test_a_restored_rule_has_seen_the_rounds_before() -> None:
    rule = StopRule({"it": early_stopping(2, ACCURACY)})
    seen = rounds(0.5, 0.4, 0.3)
    rule.restore(seen[:2], None)
    assert rule.stopped_by is None
    rule.see(seen[2])
    assert rule.stopped_by == "it"
