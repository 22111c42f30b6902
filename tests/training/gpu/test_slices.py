"""Every entry of every parameter lies in one slice, and the slices of a unit in one group."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.pruning import fit
from adaptcl.training.gpu.slices import Slices, lay_out, slices
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.units import submodel, trace


class Net(nn.Module):
    """Filters owned along the first and the second dimension, coupled, fixed and unowned ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.same = nn.Conv2d(6, 6, 1, bias=False)
        self.each = nn.Conv2d(6, 6, 3, groups=6, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2)
        self.beside = nn.BatchNorm2d(7)
        self.head = nn.Linear(7, 900)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.stem(x)))
        hidden = self.up(self.each(hidden + self.same(hidden)))
        both = self.beside(torch.cat([x, hidden[:, :, :-1, :-1]], 1))
        scores: Tensor = self.head(F.relu(both).mean((2, 3)))
        return scores


NET = Net()
UNITS = trace(NET, torch.randn(2, 3, 8, 8))


def entries(table: Slices, piece: int) -> Tensor:
    """Where the entries of one slice lie in their tensor's memory."""
    number = torch.arange(int(table.counts[piece]))
    inner, outer = table.inners[piece], table.outers[piece]
    return table.offsets[piece] + (number // inner) * outer + number % inner


def test_a_place_shows_its_tensor_in_the_vector_of_all() -> None:
    for shape in ((4, 3, 3, 3), (5, 7), (6,), (2, 3, 4, 1, 1)):
        places, length = lay_out({"before": (3,), "tensor": shape, "after": (1,)})
        vector = torch.zeros(length)
        places["tensor"].view(vector).fill_(1)
        assert vector.sum() == torch.Size(shape).numel()
        assert places["before"].view(vector).sum() == 0
        assert places["after"].view(vector).sum() == 0


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
def test_every_entry_of_every_parameter_is_in_exactly_one_slice(seed: int, share: float) -> None:
    importance = torch.rand(UNITS.count, generator=torch.Generator().manual_seed(seed))
    kept = fit(
        UNITS, UNITS.everything(), importance, share * sum(p.numel() for p in NET.parameters())
    )
    model = submodel(NET, UNITS, kept)
    places, _ = lay_out({n: tuple(p.shape) for n, p in model.named_parameters()})
    table = slices(places, UNITS, kept)
    seen = [torch.zeros(place.count) for place in places.values()]
    for piece in range(len(table.counts)):
        seen[int(table.tensors[piece])][entries(table, piece)] += 1
    assert all(bool((each == 1).all()) for each in seen)


def test_a_group_holds_what_the_group_lasso_takes_for_its_units() -> None:
    kept = torch.ones(UNITS.count, dtype=torch.bool)
    kept[1] = kept[8] = False
    model = submodel(NET, UNITS, kept)
    named = dict(model.named_parameters())
    places, length = lay_out({n: tuple(p.shape) for n, p in named.items()})
    vector = torch.zeros(length)
    for name, place in places.items():
        place.view(vector).copy_(named[name].detach())
    table = slices(places, UNITS, kept)
    starts = [place.start for place in places.values()]
    lasso = GroupLasso(model, UNITS, kept)
    norms = []
    for group in range(int(kept.sum())):
        pieces = range(int(table.firsts[group]), int(table.firsts[group + 1]))
        squares = sum(
            vector[starts[int(table.tensors[p])] + entries(table, p)].square().sum() for p in pieces
        )
        norms.append(torch.as_tensor(squares).sqrt())
    assert torch.allclose(torch.stack(norms), lasso.norms()[:-1], atol=1e-6)
    weighted = (table.roots[: len(norms)] * torch.stack(norms)).sum()
    assert float(weighted) == pytest.approx(lasso.penalty(), rel=1e-5)


def test_what_no_unit_owns_has_no_lasso_and_comes_in_pieces() -> None:
    kept = UNITS.everything()
    places, _ = lay_out({n: tuple(p.shape) for n, p in NET.named_parameters()})
    table = slices(places, UNITS, kept)
    head = list(places).index("head.weight")
    mine = (table.tensors == head).nonzero().flatten()
    assert len(mine) == 2  # 6,300 entries in pieces of at most 4,096
    groups = torch.searchsorted(table.firsts, mine, right=True) - 1
    assert bool((table.roots[groups] == 0).all())
