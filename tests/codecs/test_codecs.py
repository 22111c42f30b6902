"""What all codecs have in common, and how they are found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptcl.codecs import CODECS, Memory, Parcel, Payload, codec, down_codec
from adaptcl.codecs.codec import Reader
from adaptcl.errors import SettingError, UpdateError
from adaptcl.training.divergence import first_not_finite
from adaptcl.units import State

Parcels = Callable[..., Parcel]
everyone = pytest.mark.parametrize("name", CODECS)


def encoded(name: str, parcel: Parcel) -> State:
    return dict(codec(name, {}).encode(parcel, Memory())[0].tensors)


@pytest.mark.slow
@everyone
@settings(max_examples=25)
@given(bits=st.lists(st.booleans(), min_size=24, max_size=24).filter(any), round=st.integers(1, 9))
def test_any_sub_model_comes_back_and_takes_the_bytes_that_were_foretold(
    make_parcel: Parcels, name: str, bits: list[bool], round: int
) -> None:
    parcel = make_parcel(kept=torch.tensor(bits), round=round)
    chosen = codec(name, {})
    payload, _ = chosen.encode(parcel, Memory())
    decoded = chosen.decode(payload, parcel.reference)
    assert list(decoded) == list(parcel.reference)
    for key, tensor in decoded.items():
        assert tensor.shape == parcel.state[key].shape
        assert tensor.dtype == parcel.state[key].dtype
        assert (tensor - parcel.state[key]).abs().max() < 0.06
    no_values = {key: torch.empty_like(t, device="meta") for key, t in parcel.state.items()}
    foretold = chosen.size(replace(parcel, state=no_values, reference=no_values))
    assert payload.nbytes == foretold


@everyone
def test_the_default_dtype_of_the_process_changes_nothing(make_parcel: Parcels, name: str) -> None:
    parcel, chosen = make_parcel(), codec(name, {})
    expected = encoded(name, parcel)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        payload, _ = chosen.encode(parcel, Memory())
        decoded = chosen.decode(payload, parcel.reference)
    finally:
        torch.set_default_dtype(before)
    for key, tensor in expected.items():
        assert payload.tensors[key].dtype == tensor.dtype
        assert torch.equal(payload.tensors[key], tensor)
    assert all(tensor.dtype == parcel.state[key].dtype for key, tensor in decoded.items())


@everyone
def test_encoding_and_decoding_leave_their_arguments_alone(make_parcel: Parcels, name: str) -> None:
    parcel, untouched = make_parcel(), make_parcel()
    chosen = codec(name, {})
    payload, memory = chosen.encode(parcel, Memory())
    remembered = {key: tensor.clone() for key, tensor in memory.tensors.items()}
    chosen.encode(parcel, memory)
    chosen.decode(payload, parcel.reference)
    for key in untouched.state:
        assert torch.equal(parcel.state[key], untouched.state[key])
        assert torch.equal(parcel.reference[key], untouched.reference[key])
    assert all(torch.equal(memory.tensors[key], remembered[key]) for key in remembered)


@everyone
def test_compression_saves_bytes(make_parcel: Parcels, name: str) -> None:
    parcel = make_parcel()
    plain = Payload(encoded("plain", parcel)).nbytes
    assert name == "plain" or Payload(encoded(name, parcel)).nbytes < plain * 0.8


@everyone
def test_a_payload_that_is_not_as_agreed_is_refused(make_parcel: Parcels, name: str) -> None:
    parcel = make_parcel()
    sent = encoded(name, parcel)
    wrong = [sent | {"extra": torch.ones(1)}]
    for key, tensor in sent.items():
        other = tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)
        wrong += [
            {each: t for each, t in sent.items() if each != key},
            sent | {key: torch.cat([tensor.flatten(), tensor.flatten()[:1]])},
            sent | {key: other},
        ]
    for tensors in wrong:
        with pytest.raises(UpdateError):
            codec(name, {}).decode(Payload(tensors), parcel.reference)


@everyone
def test_what_is_not_finite_is_not_hidden(make_parcel: Parcels, name: str) -> None:
    for key in ("0.weight", "1.running_var"):
        for poison in (torch.nan, torch.inf, -torch.inf):
            parcel = make_parcel()
            parcel.state[key].view(-1)[7] = poison
            decoded = codec(name, {}).decode(Payload(encoded(name, parcel)), parcel.reference)
            assert first_not_finite(decoded) == key


@pytest.mark.parametrize("name", ["fp16", "int8", "dgc"])
def test_a_count_cannot_travel_as_a_change(make_parcel: Parcels, name: str) -> None:
    parcel = make_parcel()
    tensors = encoded(name, parcel)
    del tensors["whole:1.num_batches_tracked"]
    tensors["values:1.num_batches_tracked"] = torch.ones(1)
    with pytest.raises(UpdateError, match=r"lacks 'whole:1\.num_batches_tracked'"):
        codec(name, {}).decode(Payload(tensors), parcel.reference)


def test_a_codec_takes_the_settings_it_declares_and_leaves_the_rest() -> None:
    codec("dgc", {"dgc_sparsity": 0.99, "learning_rate": 1})
    with pytest.raises(SettingError, match="dgc_sparsity is 1"):
        codec("dgc", {"dgc_sparsity": 1.0})


@pytest.mark.parametrize(
    ("up", "down", "used"),
    [
        ("int8", "same", "int8"),
        ("dgc", "same", "plain"),
        ("tests.engines.test_codec_sizes:Large", "same", "plain"),
        ("dgc", "fp16", "fp16"),
        ("int8", "plain", "plain"),
    ],
)
def test_models_are_encoded_as_updates_are_where_the_codec_can(
    up: str, down: str, used: str
) -> None:
    assert down_codec(up, down) == used


def test_an_unknown_codec_is_refused_with_what_there_is() -> None:
    with pytest.raises(SettingError, match=r"'zip'.*plain, fp16, int8, dgc"):
        codec("zip", {})


def test_what_comes_out_is_exactly_what_went_in(make_parcel: Parcels) -> None:
    parcel = make_parcel()
    plain = codec("plain", {})
    payload, _ = plain.encode(parcel, Memory())
    decoded = plain.decode(payload, parcel.reference)
    assert decoded.keys() == parcel.state.keys()
    assert all(torch.equal(decoded[name], parcel.state[name]) for name in decoded)


def test_every_entry_takes_its_four_bytes(make_parcel: Parcels) -> None:
    parcel = make_parcel(kept=torch.arange(24) < 10)
    payload, _ = codec("plain", {}).encode(parcel, Memory())
    weights, biases, batch_norm, count = 10 * 20 + 3 * 10, 10 + 3, 4 * 10, 8
    assert payload.nbytes == 4 * (weights + biases + batch_norm) + count


def reader() -> Reader:
    return Reader(Payload({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.int32)}))


def test_what_is_as_agreed_is_taken() -> None:
    wire = reader()
    assert wire.take("a", torch.float32, (2, 3)).shape == (2, 3)
    assert wire.take("b", torch.int32, (None,)).shape == (4,)
    wire.close()


def test_nothing_can_be_taken_twice() -> None:
    wire = reader()
    wire.take("a", torch.float32, (2, 3))
    assert not wire.holds("a")
    with pytest.raises(UpdateError, match="lacks 'a'"):
        wire.take("a", torch.float32, (2, 3))


def test_another_shape_is_refused_and_both_are_named() -> None:
    for shape in ((3, 2), (6,), (2, 3, 1), (), (None, 2)):
        with pytest.raises(UpdateError, match=r"'a' in the shape \[2, 3\], but it must be \["):
            reader().take("a", torch.float32, shape)


def test_another_type_is_refused() -> None:
    with pytest.raises(UpdateError, match=r"int32, but it must be torch\.int64"):
        reader().take("b", torch.int64, (4,))


def test_what_is_left_over_is_named() -> None:
    with pytest.raises(UpdateError, match="'a', 'b'"):
        reader().close()


def test_of_much_that_is_left_over_only_some_is_named() -> None:
    many = Reader(Payload({f"{n}" * 1000: torch.ones(1) for n in range(20_000)}))
    with pytest.raises(UpdateError, match="and 19997 more") as refused:
        many.close()
    assert len(str(refused.value)) < 400
