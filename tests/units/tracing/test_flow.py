from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.units.tracing.flow import PINNED, Coupling

PAIRS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=20)


def coupled(pairs: list[tuple[int, int]]) -> Coupling:
    coupling = Coupling()
    coupling.fresh(12)
    for one, other in pairs:
        coupling.couple(torch.tensor([one]), torch.tensor([other]))
    return coupling


@given(PAIRS)
def test_the_order_of_coupling_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    everyone = torch.arange(13)
    swapped = [(other, one) for one, other in reversed(pairs)]
    assert coupled(pairs).roots(everyone) == coupled(swapped).roots(everyone)


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
    before = coupling.roots(torch.arange(13))
    coupling.pin(torch.tensor([pinned]))
    after = coupling.roots(torch.arange(13))
    for old, new in zip(before, after, strict=True):
        assert new == (PINNED if old == before[pinned] else old)
