from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.report.wording import PERCENT, Quantity, duration, number_of, span, volume


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (0.0164, "0.016 s"),
        (41.23, "41.2 s"),
        (119.9, "119.9 s"),
        (120.0, "2.0 min"),
        (5190.0, "86.5 min"),
        (7200.0, "2.0 h"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_a_duration_is_written_in_the_largest_unit_it_holds_two_of(
    seconds: float | None, words: str
) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (59_967_784, "57.2 MiB"), (None, "–")],
)
def test_a_volume_counts_in_powers_of_1024(count: int | None, words: str) -> None:
    assert volume(count) == words


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
