from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.errors import SettingError
from adaptcl.strategies.synchronous import draw, refuse_too_many


@given(
    st.sets(st.integers(0, 10_000), max_size=60).map(sorted),
    st.integers(1, 80),
    st.integers(0, 2**40),
    st.integers(1, 500),
)
def test_a_draw_is_of_different_workers_in_their_order_and_the_same_every_time(
    available: list[int], count: int, seed: int, round_: int
) -> None:
    drawn = draw(available, count, seed, round_)
    assert len(drawn) == min(count, len(available))
    assert drawn == sorted(set(drawn) & set(available))
    assert drawn == draw(available, count, seed, round_)


def test_every_round_and_every_seed_draws_others() -> None:
    draws = {tuple(draw(range(1000), 10, seed, r)) for seed in range(5) for r in range(20)}
    assert len(draws) == 100


def test_everybody_has_the_same_chance() -> None:
    turns = Counter(worker for r in range(4000) for worker in draw(range(20), 5, 1, r))
    # A thousand turns each are expected, with a standard deviation of 27.
    assert min(turns.values()) > 1000 - 5 * 27
    assert max(turns.values()) < 1000 + 5 * 27


def test_more_participants_than_workers_are_refused() -> None:
    refuse_too_many(10, 10)
    refuse_too_many(0, 10)
    with pytest.raises(SettingError, match="participants is 11, but there are only 10 workers"):
        refuse_too_many(11, 10)
