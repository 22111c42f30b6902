from __future__ import annotations

import math

from adaptcl.engines.loop import Deadline
from adaptcl.strategies import Closed, Reaction

CLOSED = Closed(round=1, workers=())


def test_at_first_there_is_none() -> None:
    deadline = Deadline()
    assert deadline.at == math.inf
    assert deadline.left(5.0) is None


def test_it_is_counted_from_the_moment_it_is_asked_for_and_then_stays() -> None:
    deadline = Deadline()
    deadline.follow(Reaction(deadline=3.0), now=10.0)
    deadline.follow(Reaction(), now=11.0)
    assert deadline.at == 13.0
    assert [deadline.left(now) for now in (10.0, 12.0, 20.0)] == [3.0, 1.0, 0.0]


def test_another_replaces_it_and_the_end_of_a_round_without_one_clears_it() -> None:
    deadline = Deadline()
    deadline.follow(Reaction(deadline=3.0), now=10.0)
    deadline.follow(Reaction(closed=CLOSED, deadline=4.0), now=12.0)
    assert deadline.at == 16.0
    deadline.follow(Reaction(closed=CLOSED), now=15.0)
    assert deadline.at == math.inf
