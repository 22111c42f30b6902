"""FP16 and int8: what arrives of a change, and how many bytes it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.codecs import Memory, Parcel, Payload, codec

Parcels = Callable[..., Parcel]


def sent(name: str, parcel: Parcel) -> Payload:
    return codec(name, {}).encode(parcel, Memory())[0]


def from_zero(parcel: Parcel) -> Parcel:
    """The same trained sub-model, as a change of nothing."""
    zero = {name: torch.zeros_like(t) for name, t in parcel.reference.items()}
    return Parcel(parcel.units, parcel.kept, parcel.state, zero, parcel.round)


def test_a_change_is_scaled_to_its_largest_entry(make_parcel: Parcels) -> None:
    weights = torch.zeros(24, 20)
    weights[0, :3] = torch.tensor([0.5, -0.25, 0.125])
    payload = sent("fp16", make_parcel(weights=weights))
    assert payload.tensors["scale:0.weight"] == pytest.approx(0.5)
    change = payload.tensors["change:0.weight"]
    assert change.dtype == torch.float16
    assert change[0, :4].tolist() == pytest.approx([1.0, -0.5, 0.25, 0.0], abs=1e-6)


@given(change=st.floats(-30, 3).map(lambda power: 10**power))
def test_every_change_arrives_within_half_precision_however_small_it_is(
    make_parcel: Parcels, change: float
) -> None:
    parcel = make_parcel(change=change)
    moved = from_zero(parcel)
    decoded = codec("fp16", {}).decode(sent("fp16", moved), moved.reference)
    for name, expected in moved.state.items():
        error = (decoded[name] - expected).abs().max()
        assert error <= expected.abs().max() * 2**-11


def test_buffers_travel_whole(make_parcel: Parcels) -> None:
    parcel = make_parcel()
    decoded = codec("fp16", {}).decode(sent("fp16", parcel), parcel.reference)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(decoded[name], parcel.state[name])


def test_a_tensor_that_did_not_change_arrives_unchanged(make_parcel: Parcels) -> None:
    parcel = make_parcel(weights=torch.zeros(24, 20))
    decoded = codec("fp16", {}).decode(sent("fp16", parcel), parcel.reference)
    assert torch.equal(decoded["0.weight"], parcel.reference["0.weight"])


def test_the_largest_change_of_a_row_is_127_steps(make_parcel: Parcels) -> None:
    parcel = from_zero(make_parcel())
    weights = parcel.state["0.weight"]
    weights.zero_()
    weights[0, :3] = torch.tensor([1.27, -0.5, 0.014])
    weights[1, 0] = -12.7
    tensors = sent("int8", parcel).tensors
    assert tensors["scale:0.weight"][:3].tolist() == pytest.approx([0.01, 0.1, 0.0])
    assert tensors["change:0.weight"][0, :4].tolist() == [127, -50, 1, 0]
    assert tensors["change:0.weight"][1, 0] == -127


@given(change=st.floats(-30, 3).map(lambda power: 10**power), seed=st.integers(1, 9))
def test_every_change_arrives_within_half_a_step_of_its_row(
    make_parcel: Parcels, change: float, seed: int
) -> None:
    parcel = make_parcel(change=change, seed=seed)
    moved = from_zero(parcel)
    decoded = codec("int8", {}).decode(sent("int8", moved), moved.reference)
    for name in ("0.weight", "2.weight"):
        error = (decoded[name] - moved.state[name]).abs()
        step = moved.state[name].abs().amax(1, keepdim=True) / 127
        assert bool((error <= step * 0.5001).all())


def test_vectors_and_buffers_travel_whole(make_parcel: Parcels) -> None:
    parcel = make_parcel()
    decoded = codec("int8", {}).decode(sent("int8", parcel), parcel.reference)
    for name, tensor in parcel.state.items():
        if tensor.ndim < 2:
            assert torch.equal(decoded[name], tensor)


def test_a_weight_takes_one_byte_and_a_row_four_more(make_parcel: Parcels) -> None:
    tensors = sent("int8", make_parcel()).tensors
    assert Payload({"w": tensors["change:0.weight"]}).nbytes == 480
    assert Payload({"s": tensors["scale:0.weight"]}).nbytes == 24 * 4
