from __future__ import annotations

from collections.abc import Callable

import pytest

from adaptcl.quantities import (
    Quantity,
    duration,
    duration_unit,
    from_to,
    rate_unit,
    short_duration,
    volume,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (0.0064, "6.4 ms"),
        (0.0164, "0.016 s"),
        (1.7131, "1.71 s"),
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


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.5, "0.5 s"), (30.0, "30 s"), (3600.0, "60 min"), (9000.0, "2.5 h")]
)
def test_a_time_that_names_something_has_no_zeros_at_its_end(seconds: float, words: str) -> None:
    assert short_duration(seconds) == words


@pytest.mark.parametrize(
    ("unit_of", "values", "words"),
    [
        (rate_unit, (100, 0.05 * 2**20), "100 B/s to 51.2 KiB/s"),
        (rate_unit, (4096, 0.05 * 2**20), "4.0 to 51.2 KiB/s"),
        (rate_unit, (0.05 * 2**20, 5 * 2**20), "51.2 KiB/s to 5.0 MiB/s"),
        (duration_unit, (30.0, 50.0), "30.0 to 50.0 s"),
        (duration_unit, (50.0, 151.2), "50.0 s to 2.5 min"),
        (duration_unit, (0.9995, 1.0004), "1.00 s"),
        (duration_unit, (0.0085, 0.017), "8.5 ms to 0.017 s"),
    ],
)
def test_a_span_counts_no_slow_link_in_mebibytes_and_has_one_unit_if_it_can(
    unit_of: Callable[[float], Quantity], values: tuple[float, float], words: str
) -> None:
    assert from_to(unit_of, values) == words
