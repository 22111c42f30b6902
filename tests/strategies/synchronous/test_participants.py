"""Rounds in which some of many workers take part."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.errors import SettingError
from adaptcl.strategies import Reaction
from adaptcl.strategies.synchronous import draw_participants

if TYPE_CHECKING:
    from tests.strategies.synchronous.conftest import Begun, Round


def workers_of(reaction: Reaction) -> list[int]:
    return [task.worker for task in reaction.tasks]


def drawn(begun: Begun, **settings: Any) -> tuple[Round, list[int]]:
    """The first round of three among ten, and who they are."""
    rounds = begun(10, 9, participants=3, **settings)
    return rounds, sorted(rounds.open)


def test_each_round_asks_as_many_as_are_set_and_others_every_time(begun: Begun) -> None:
    rounds, first = drawn(begun)
    asked = [first]
    for _ in range(8):
        for worker in sorted(rounds.open):
            reaction = rounds.answer(worker, 1.0)
        assert reaction.closed is not None
        assert list(reaction.closed.participants) == asked[-1]
        assert [record.worker for record in reaction.closed.workers] == asked[-1]
        asked.append(workers_of(reaction))
    assert all(len(set(workers)) == 3 for workers in asked)
    assert len(set(map(tuple, asked))) > 5


def test_where_everybody_is_asked_nobody_is_put_on_record_as_drawn(begun: Begun) -> None:
    rounds = begun(2, 9)
    rounds.answer(0)
    closed = rounds.answer(1).closed
    assert closed is not None
    assert closed.participants == ()


def test_a_round_goes_on_without_a_participant_that_is_lost(begun: Begun) -> None:
    rounds, (first, second, third) = drawn(begun)
    rounds.answer(first, 2.0)
    assert rounds.strategy.lost(second) == Reaction()
    closed = rounds.answer(third, 4.0).closed
    assert closed is not None
    assert [record.worker for record in closed.workers] == [first, third]
    assert closed.participants == (first, second, third)
    assert rounds.value() == 3


def test_if_all_participants_are_lost_others_are_drawn_for_the_same_round(begun: Begun) -> None:
    rounds, first = drawn(begun)
    reactions = [rounds.strategy.lost(worker) for worker in first]
    assert reactions[:2] == [Reaction(), Reaction()]
    assert len(reactions[2].tasks) == 3
    assert not set(workers_of(reactions[2])) & set(first)
    assert {task.round for task in reactions[2].tasks} == {1}


def test_a_worker_that_comes_takes_a_place_that_is_free_and_no_other(begun: Begun) -> None:
    rounds, first = drawn(begun)
    outside = next(worker for worker in range(10) if worker not in first)
    rounds.strategy.lost(outside)
    assert rounds.strategy.joined(outside) == Reaction()
    rounds.answer(first[0])
    rounds.strategy.lost(first[1])
    assert workers_of(rounds.take(rounds.strategy.joined(outside))) == [outside]
    assert rounds.strategy.joined(first[1]) == Reaction()
    rounds.answer(first[2])
    closed = rounds.answer(outside).closed
    assert closed is not None
    assert closed.participants == tuple(sorted([*first, outside]))


def test_nobody_is_drawn_who_is_away_or_still_busy(begun: Begun) -> None:
    rounds, first = drawn(begun, deadline=1.5)
    away = next(worker for worker in range(10) if worker not in first)
    rounds.strategy.lost(away)
    for worker in first[:2]:
        rounds.answer(worker)
    reaction = rounds.strategy.expired()
    assert reaction.closed is not None
    assert reaction.closed.missing == (first[2],)
    assert len(reaction.tasks) == 3
    assert not {away, first[2]} & set(workers_of(reaction))


def test_a_dropped_late_update_gives_its_worker_no_place_in_a_full_round(begun: Begun) -> None:
    rounds, first = drawn(begun, deadline=1.5, late_updates="drop")
    for worker in first[:2]:
        rounds.answer(worker)
    second = workers_of(rounds.take(rounds.strategy.expired()))
    assert rounds.answer(first[2], 40.0) == Reaction(dropped=True)
    rounds.strategy.lost(second[0])
    rounds.open.pop(second[0])
    assert workers_of(rounds.strategy.joined(first[2])) == [first[2]]


def test_who_is_still_at_an_earlier_round_takes_no_place_of_this_one(begun: Begun) -> None:
    rounds, first = drawn(begun, deadline=1.5)
    for worker in first[:2]:
        rounds.answer(worker)
    second = workers_of(rounds.take(rounds.strategy.expired()))
    assert first[2] in rounds.open
    outside = next(worker for worker in range(10) if worker not in {*first, *second})
    rounds.strategy.lost(outside)
    rounds.strategy.lost(second[0])
    assert workers_of(rounds.strategy.joined(outside)) == [outside]


def test_with_fewer_workers_here_than_places_all_of_them_take_part(begun: Begun) -> None:
    rounds, first = drawn(begun)
    for worker in range(10):
        if worker not in first[:2]:
            rounds.strategy.lost(worker)
    rounds.answer(first[0])
    reaction = rounds.answer(first[1])
    assert workers_of(reaction) == first[:2]


def test_more_participants_than_workers_are_refused(begun: Begun) -> None:
    begun(10, 9, participants=10)
    with pytest.raises(SettingError, match="participants is 11, but there are only 10 workers"):
        begun(10, 9, participants=11)


# The draw ---------------------------------------------------------------------------------------


@given(
    st.sets(st.integers(0, 10_000), max_size=60).map(sorted),
    st.integers(1, 80),
    st.integers(0, 2**40),
    st.integers(1, 500),
)
def test_a_draw_is_of_different_workers_in_their_order_and_the_same_every_time(
    available: list[int], count: int, seed: int, round_: int
) -> None:
    drawn = draw_participants(available, count, seed, round_)
    assert len(drawn) == min(count, len(available))
    assert drawn == sorted(set(drawn) & set(available))
    assert drawn == draw_participants(available, count, seed, round_)


def test_every_round_and_every_seed_draws_others() -> None:
    draws = {
        tuple(draw_participants(range(1000), 10, seed, r)) for seed in range(5) for r in range(20)
    }
    assert len(draws) == 100


def test_everybody_has_the_same_chance() -> None:
    turns = Counter(worker for r in range(4000) for worker in draw_participants(range(20), 5, 1, r))
    # A thousand turns each are expected, with a standard deviation of 27.
    assert min(turns.values()) > 1000 - 5 * 27
    assert max(turns.values()) < 1000 + 5 * 27
