"""What a setting asks of others."""

from __future__ import annotations

import pytest

from adaptcl.settings import Beside, Condition, Unless, With


@pytest.mark.parametrize(
    ("condition", "settings", "holds"),
    [
        (With("partition", "by-label"), {"partition": "by-label"}, True),
        (With("partition", "by-label"), {"partition": "iid"}, False),
        (Beside("deadline"), {"deadline": 1.5}, True),
        (Beside("deadline"), {"deadline": 0.0}, False),
        (Unless("bandwidths"), {"bandwidths": []}, True),
        (Unless("bandwidths"), {"bandwidths": [1.0]}, False),
    ],
)
def test_a_condition_is_about_another_setting(
    condition: Condition, settings: dict[str, object], holds: bool
) -> None:
    assert condition.holds(settings) is holds


def test_a_choice_that_a_record_does_not_have_makes_nothing_idle() -> None:
    assert With("optimizer", "sgd").holds({"momentum": 0.5})


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (With("partition", "by-label"), "with partition iid; it is for by-label"),
        (Beside("deadline"), "without deadline"),
        (Unless("bandwidths"), "beside bandwidths"),
    ],
)
def test_it_says_what_is_in_the_way(condition: Condition, words: str) -> None:
    assert condition.refusal({"partition": "iid"}) == words
