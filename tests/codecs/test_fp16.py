from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.codecs import Memory, Parcel, Payload, codec

Parcels = Callable[..., Parcel]


def sent(parcel: Parcel) -> Payload:
    return codec("fp16", {}).encode(parcel, Memory())[0]


def test_a_change_is_scaled_to_its_largest_entry(make_parcel: Parcels) -> None:
    weights = torch.zeros(24, 20)
    weights[0, :3] = torch.tensor([0.5, -0.25, 0.125])
    payload = sent(make_parcel(weights=weights))
    assert payload.tensors["scale:0.weight"] == pytest.approx(0.5)
    change = payload.tensors["change:0.weight"]
    assert change.dtype == torch.float16
    assert change[0, :4].tolist() == pytest.approx([1.0, -0.5, 0.25, 0.0], abs=1e-6)


@given(change=st.floats(-30, 3).map(lambda power: 10**power))
def test_every_change_arrives_within_half_precision_however_small_it_is(
    make_parcel: Parcels, change: float
) -> None:
    parcel = make_parcel(change=change)
    quiet = {name: torch.zeros_like(t) for name, t in parcel.reference.items()}
    moved = Parcel(parcel.units, parcel.kept, parcel.state, quiet, 1)
    decoded = codec("fp16", {}).decode(sent(moved), quiet)
    for name, expected in moved.state.items():
        error = (decoded[name] - expected).abs().max()
        assert error <= expected.abs().max() * 2**-11


def test_buffers_travel_whole(make_parcel: Parcels) -> None:
    parcel = make_parcel()
    decoded = codec("fp16", {}).decode(sent(parcel), parcel.reference)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(decoded[name], parcel.state[name])


def test_nothing_changed_is_nothing_changed(make_parcel: Parcels) -> None:
    parcel = make_parcel(weights=torch.zeros(24, 20))
    decoded = codec("fp16", {}).decode(sent(parcel), parcel.reference)
    assert torch.equal(decoded["0.weight"], parcel.reference["0.weight"])
