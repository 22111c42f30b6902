"""The learning rate of a worker's round."""

from __future__ import annotations

import pytest

from adaptcl.training import Recipe


def test_the_learning_rate_is_constant_unless_it_decays() -> None:
    recipe = Recipe(learning_rate=0.1)
    assert recipe.in_round(7) is recipe


def test_the_learning_rate_decays_from_the_second_round_on() -> None:
    recipe = Recipe(learning_rate=0.1, learning_rate_decay=0.5)
    rates = [recipe.in_round(number).learning_rate for number in (1, 2, 4)]
    assert rates == pytest.approx([0.1, 0.05, 0.0125])
