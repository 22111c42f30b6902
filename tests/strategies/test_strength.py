from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.strategies.adaptcl.strength import AdaptedStrength

shares = st.floats(0, 1)


def test_a_pruning_that_costs_little_does_not_wait() -> None:
    strength = AdaptedStrength(limit=0.2, longest=10)
    assert not strength.waits(0.2)
    assert strength.scale == 1
    assert not strength.waiting


def test_it_waits_as_long_as_the_importance_lost_falls_and_then_lambda_is_what_it_was() -> None:
    strength = AdaptedStrength(limit=0.2, longest=10)
    assert [strength.waits(lost) for lost in (0.5, 0.4, 0.3)] == [True] * 3
    assert strength.scale == pytest.approx(1.5**3)
    assert not strength.waits(0.19)
    assert (strength.scale, strength.waiting) == (1, False)


def test_lambda_is_raised_up_to_four_times_and_no_more() -> None:
    strength = AdaptedStrength(limit=0.1, longest=10)
    scales = [strength.scale for lost in (0.9, 0.8, 0.7, 0.6, 0.5) if strength.waits(lost)]
    assert scales == pytest.approx([1.5, 1.5**2, 1.5**3, 4, 4])


def test_it_does_not_wait_on_where_a_round_has_gained_less_than_a_twentieth() -> None:
    strength = AdaptedStrength(limit=0.2, longest=10)
    assert strength.waits(0.5)
    assert strength.waits(0.47)
    assert not strength.waits(0.45)
    assert strength.scale == 1


def test_every_pruning_is_waited_for_anew() -> None:
    strength = AdaptedStrength(limit=0.2, longest=1)
    for _ in range(3):
        assert strength.waits(0.5)
        assert not strength.waits(0.3)


@given(st.lists(shares), shares, st.integers(1, 6))
def test_lambda_has_a_bound_and_waiting_an_end(
    losses: list[float], limit: float, longest: int
) -> None:
    strength = AdaptedStrength(limit, longest)
    in_a_row = 0
    for lost in losses:
        in_a_row = in_a_row + 1 if strength.waits(lost) else 0
        assert in_a_row <= longest
        assert 1 <= strength.scale <= 4
        assert strength.waiting == (in_a_row > 0)


@given(st.lists(shares, min_size=1), shares)
def test_what_is_restored_goes_on_as_the_original_does(losses: list[float], limit: float) -> None:
    one, other = (AdaptedStrength(limit, 4) for _ in range(2))
    for lost in losses:
        assert one.waits(lost) == other.waits(lost)
        assert one.scale == other.scale
        restored = AdaptedStrength(limit, 4)
        restored.restore(other.snapshot())
        other = restored
