from __future__ import annotations

from collections.abc import Callable

import torch

from adaptcl.codecs import Memory, Parcel, codec


def test_what_comes_out_is_exactly_what_went_in(make_parcel: Callable[..., Parcel]) -> None:
    parcel = make_parcel()
    plain = codec("plain", {})
    payload, _ = plain.encode(parcel, Memory())
    decoded = plain.decode(payload, parcel.reference)
    assert decoded.keys() == parcel.state.keys()
    assert all(torch.equal(decoded[name], parcel.state[name]) for name in decoded)


def test_every_entry_takes_its_four_bytes(make_parcel: Callable[..., Parcel]) -> None:
    parcel = make_parcel(kept=torch.arange(24) < 10)
    payload, _ = codec("plain", {}).encode(parcel, Memory())
    weights, biases, batch_norm, count = 10 * 20 + 3 * 10, 10 + 3, 4 * 10, 8
    assert payload.nbytes == 4 * (weights + biases + batch_norm) + count
