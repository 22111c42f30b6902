from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.units.tracing.coupling import PINNED, Coupling

PAIRS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=20)


EVERYONE = torch.arange(13)


def coupled(pairs: list[tuple[int, int]]) -> Coupling:
    coupling = Coupling()
    coupling.fresh(12)
    couple(coupling, pairs)
    return coupling


def couple(coupling: Coupling, pairs: list[tuple[int, int]]) -> None:
    for one, other in pairs:
        coupling.couple(torch.tensor([one]), torch.tensor([other]))


@given(PAIRS)
def test_the_order_of_coupling_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    swapped = [(other, one) for one, other in reversed(pairs)]
    assert coupled(pairs).roots(EVERYONE) == coupled(swapped).roots(EVERYONE)


@given(PAIRS)
def test_coupling_is_transitive(pairs: list[tuple[int, int]]) -> None:
    coupling = coupled(pairs)
    for one, other in pairs:
        left, right = coupling.roots(torch.tensor([one, other]))
        assert left == right
        assert left <= min(one, other)


@given(PAIRS, st.integers(1, 12))
def test_pinning_one_pins_all_that_is_coupled_with_it_and_nothing_else(
    pairs: list[tuple[int, int]], pinned: int
) -> None:
    coupling = coupled(pairs)
    before = coupling.roots(EVERYONE)
    coupling.pin(torch.tensor([pinned]), "a reason")
    for one, (old, new) in enumerate(zip(before, coupling.roots(EVERYONE), strict=True)):
        assert new == (PINNED if old == before[pinned] else old)
        assert one == PINNED or new != PINNED or coupling.cause(one) == (pinned, "a reason")


@given(PAIRS, PAIRS, st.integers(1, 12))
def test_a_trial_changes_neither_sets_nor_causes(
    pairs: list[tuple[int, int]], tried: list[tuple[int, int]], pinned: int
) -> None:
    plain, trying = coupled(pairs), coupled(pairs)
    with trying.trial():
        couple(trying, tried)
        trying.pin(torch.tensor([pinned]), "a trial")
    assert trying.roots(EVERYONE) == plain.roots(EVERYONE)
    for each in (plain, trying):
        each.pin(EVERYONE, "no trial")
    assert all(plain.cause(one) == trying.cause(one) for one in range(1, 13))
