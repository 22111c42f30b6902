from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.quantities import Quantity
from adaptcl.report.wording import PERCENT, number_of, span


@given(st.lists(st.floats(0, 1), min_size=1))
def test_the_mean_lies_between_the_lowest_and_the_highest(values: list[float]) -> None:
    words = PERCENT.write(*values)
    if "±" in words:
        mean = float(words.split(" ± ")[0])
        assert round(100 * min(values), 2) <= mean <= round(100 * max(values), 2)
    else:
        assert words == PERCENT.write(min(values)) == PERCENT.write(max(values))


def test_unknown_numbers_do_not_count_in_a_mean() -> None:
    assert Quantity("×", digits=1).write(1.0, None, 3.0, float("inf")) == "2.0 ± 1.4×"


def test_a_span_of_equal_numbers_is_one_number() -> None:
    assert span([0.331, 1.0]) == "0.33–1.00"
    assert span([0.999, 1.001]) == "1.00"
    assert span([]) == "–"


@pytest.mark.parametrize(("number", "words"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_thing_is_not_several(number: int, words: str) -> None:
    assert number_of(number, "round") == words
