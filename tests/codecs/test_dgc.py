"""DGC sends the largest changes, remembers the rest, and packs both values and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptcl.codecs import Memory, Parcel, Payload
from adaptcl.codecs.codec import Reader
from adaptcl.codecs.dgc import DGC, DGCSettings, pack_sparse, saves_bytes, unpack_sparse
from adaptcl.errors import UpdateError
from adaptcl.settings import build
from adaptcl.units import State, UnitMap, put_back

Parcels = Callable[..., Parcel]
WEIGHT = "0.weight"


def dgc(**values: Any) -> DGC:
    named: Mapping[str, Any] = {f"dgc_{name}": value for name, value in values.items()}
    return DGC(build(DGCSettings, {"dgc_warmup": 0, **named}))


def sent(codec: DGC, parcel: Parcel, memory: Memory) -> tuple[Tensor, Memory]:
    """What arrives of the large weight's change, and what is remembered."""
    payload, memory = codec.encode(parcel, memory)
    zero = {name: torch.zeros_like(tensor) for name, tensor in parcel.reference.items()}
    return codec.decode(payload, zero)[WEIGHT], memory


def from_zero(parcel: Parcel, weights: Tensor) -> Parcel:
    """A parcel whose large weight changed from nothing to `weights`, without rounding."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in parcel.reference.items()}
    state = {**zero, WEIGHT: weights}
    return Parcel(parcel.units, parcel.kept, state, zero, parcel.round)


def test_only_the_largest_changes_are_sent(make_parcel: Parcels) -> None:
    weights = (torch.arange(480.0) * torch.tensor([1, -1]).repeat(240)).view(24, 20)
    arrived, _ = sent(dgc(sparsity=0.9), from_zero(make_parcel(), weights), Memory())
    expected = torch.where(weights.abs() >= 432, weights, 0)
    assert int((expected != 0).sum()) == 48
    assert torch.equal(arrived, expected)


def test_what_is_not_sent_is_added_to_the_next_change(make_parcel: Parcels) -> None:
    codec, parcel = dgc(sparsity=0.9), make_parcel()
    large, small = torch.zeros(480), torch.zeros(480)
    large[:48], large[50] = 10.0, 1.0
    small[50], small[60:107] = 1.5, 2.0
    first, memory = sent(codec, from_zero(parcel, large.view(24, 20)), Memory())
    assert first.view(-1)[50] == 0
    second, memory = sent(codec, from_zero(parcel, small.view(24, 20)), memory)
    assert second.view(-1)[50] == 2.5
    assert second.view(-1)[:48].tolist() == [0.0] * 48
    assert not bool(memory.tensors[WEIGHT].any())


def test_only_what_is_trained_waits(make_parcel: Parcels) -> None:
    _, memory = dgc().encode(make_parcel(), Memory())
    trained = {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert memory.tensors.keys() == trained


@settings(max_examples=25)
@given(
    sparsity=st.floats(0, 0.999),
    warmup=st.integers(0, 5),
    seeds=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
)
def test_what_was_sent_and_what_waits_are_all_changes(
    make_parcel: Parcels, sparsity: float, warmup: int, seeds: list[int]
) -> None:
    codec, memory = dgc(sparsity=sparsity, warmup=warmup), Memory()
    arrived, changes = torch.zeros(24, 20), torch.zeros(24, 20)
    for number, seed in enumerate(seeds, start=1):
        parcel = make_parcel(seed=seed, round=number)
        change = parcel.state[WEIGHT] - parcel.reference[WEIGHT]
        now, memory = sent(codec, parcel, memory)
        arrived, changes = arrived + now, changes + change
    assert torch.allclose(arrived + memory.tensors[WEIGHT], changes, atol=1e-6)


def test_what_waits_follows_the_units_as_the_sub_model_shrinks_and_grows(
    make_parcel: Parcels, units: UnitMap
) -> None:
    codec, memory = dgc(sparsity=0.9), Memory()
    arrived, changes = torch.zeros(24, 20), torch.zeros(24, 20)
    sub_models = [torch.ones(24, dtype=torch.bool) for _ in range(3)]
    sub_models[1][::3] = False
    for number, kept in enumerate(sub_models, start=1):
        parcel = make_parcel(kept=kept, seed=number)
        now, memory = sent(codec, parcel, memory)
        change = parcel.state[WEIGHT] - parcel.reference[WEIGHT]
        for total, part in ((arrived, now), (changes, change)):
            full = {WEIGHT: torch.zeros(24, 20)}
            put_back({WEIGHT: part}, units, kept, full)
            total += full[WEIGHT]
    assert torch.allclose(arrived + memory.tensors[WEIGHT], changes, atol=1e-6)


def test_small_tensors_send_all_that_waits_and_buffers_travel_whole(make_parcel: Parcels) -> None:
    parcel = make_parcel()
    payload, memory = dgc(sparsity=0.99).encode(parcel, Memory())
    decoded = dgc().decode(payload, parcel.reference)
    for name, tensor in parcel.state.items():
        if name != WEIGHT:
            assert torch.allclose(decoded[name], tensor, atol=1e-6)
            assert not bool(memory.tensors.get(name, torch.zeros(1)).any())
    assert payload.tensors["whole:1.running_var"] is parcel.state["1.running_var"]


def test_a_tensor_that_becomes_small_sends_what_had_waited(make_parcel: Parcels) -> None:
    codec = dgc(sparsity=0.9)
    _, memory = codec.encode(make_parcel(), Memory())
    kept = torch.arange(24) < 6
    waited = memory.tensors[WEIGHT][:6]
    parcel = make_parcel(kept=kept, seed=2)
    arrived, memory = sent(codec, parcel, memory)
    change = parcel.state[WEIGHT] - parcel.reference[WEIGHT]
    assert torch.allclose(arrived, change + waited, atol=1e-6)
    assert not bool(memory.tensors[WEIGHT][:6].any())
    assert bool(memory.tensors[WEIGHT][6:].any())


def test_the_sparsity_rises_as_the_authors_let_it_rise() -> None:
    codec = dgc(sparsity=0.999, warmup=4)
    rising = [codec.sparsity(round) for round in range(1, 8)]
    assert rising[:4] == pytest.approx([0.75, 0.9375, 0.984375, 0.996], abs=2e-3)
    assert rising[4:] == pytest.approx([0.999] * 3)


@pytest.mark.parametrize(
    ("sparsity", "values", "positions"),
    [(0.0, 480, 0), (0.7, 144, 60), (0.9, 48, 60), (0.99, 5, 4 * 5)],
)
def test_bytes_are_those_of_the_values_and_the_smaller_kind_of_positions(
    make_parcel: Parcels, sparsity: float, values: int, positions: int
) -> None:
    payload, _ = dgc(sparsity=sparsity).encode(make_parcel(), Memory())
    weight = {name: t for name, t in payload.tensors.items() if name.endswith(WEIGHT)}
    assert Payload(weight).nbytes == 4 * values + positions


def descend(
    codec: DGC, parcel: Parcel, rounds: int, learning_rate: float, workers: int = 3
) -> float:
    """Share of the excess loss left after workers solved quadratics together.

    Every worker has its own curvatures and its own optimum near the common one, takes five local
    steps with momentum 0.9 a round, and sends its change through the codec.
    """
    generator = torch.Generator().manual_seed(0)
    curvature = torch.rand(workers, 24, 20, generator=generator) * 0.9 + 0.1
    optimum = torch.randn(24, 20, generator=generator)
    optima = optimum + 0.1 * torch.randn(workers, 24, 20, generator=generator)
    best = (curvature * optima).sum(0) / curvature.sum(0)

    def loss(at: Tensor) -> float:
        return float((curvature * (at - optima) ** 2).sum())

    weights = torch.zeros(24, 20)
    memories = [Memory()] * workers
    for number in range(1, rounds + 1):
        total = torch.zeros(24, 20)
        for worker in range(workers):
            trained, velocity = weights.clone(), torch.zeros(24, 20)
            for _ in range(5):
                velocity = 0.9 * velocity + curvature[worker] * (trained - optima[worker])
                trained -= learning_rate * velocity
            reference: State = {WEIGHT: weights}
            update = Parcel(parcel.units, parcel.kept, {WEIGHT: trained}, reference, number)
            payload, memories[worker] = codec.encode(update, memories[worker])
            total += codec.decode(payload, reference)[WEIGHT]
        weights = total / workers
    return (loss(weights) - loss(best)) / (loss(torch.zeros(24, 20)) - loss(best))


@pytest.mark.parametrize(
    ("sparsity", "rounds", "learning_rate", "left"),
    [(0.7, 150, 0.01, 1e-3), (0.99, 150, 0.01, 0.05), (0.9, 100, 0.1, 0.02)],
)
def test_workers_learn_together(
    make_parcel: Parcels, sparsity: float, rounds: int, learning_rate: float, left: float
) -> None:
    codec = dgc(sparsity=sparsity, warmup=4)
    assert descend(codec, make_parcel(), rounds, learning_rate) < left


# Sparse tensors.


def unpacked(packed: State, size: int) -> torch.Tensor:
    reader = Reader(Payload(packed))
    tensor = unpack_sparse(reader, "w", (size,))
    reader.close()
    return tensor


@given(size=st.integers(1, 400), data=st.data())
def test_what_is_packed_is_unpacked(size: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, size - 1)))
    indexes = torch.tensor(sorted(chosen), dtype=torch.int64)
    expected = torch.zeros(size)
    expected[indexes] = torch.arange(1.0, len(indexes) + 1)
    packed = pack_sparse("w", expected[indexes], indexes, size)
    assert torch.equal(unpacked(packed, size), expected)


@given(size=st.integers(1, 5000), data=st.data())
def test_positions_take_the_smaller_of_indexes_and_mask(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, size - 1))
    indexes = torch.arange(count)
    nbytes = Payload(pack_sparse("w", torch.zeros(count), indexes, size)).nbytes
    assert nbytes == 4 * count + min(4 * count, (size + 7) // 8)
    assert saves_bytes(count, size) == (nbytes < 4 * size)


def test_a_mask_has_the_first_position_in_its_lowest_bit() -> None:
    packed = pack_sparse("w", torch.ones(4), torch.tensor([0, 1, 7, 9]), 10)
    assert packed["mask:w"].tolist() == [0b1000_0011, 0b10]


def test_when_all_is_sent_no_positions_are() -> None:
    assert pack_sparse("w", torch.ones(3), torch.arange(3), 3).keys() == {"values:w"}


@pytest.mark.parametrize(
    ("indexes", "complaint"),
    [
        ([0, 100], "outside"),
        ([-1, 3], "outside"),
        ([3, 3], "twice"),
        ([5, 3], "twice or out of order"),
        ([5, 200, 7], "twice or out of order"),
    ],
)
def test_impossible_indexes_are_refused(indexes: list[int], complaint: str) -> None:
    packed = {
        "values:w": torch.ones(len(indexes)),
        "indexes:w": torch.tensor(indexes, dtype=torch.int32),
    }
    with pytest.raises(UpdateError, match=complaint):
        unpacked(packed, 100)


def test_values_and_positions_must_belong_together() -> None:
    one, mask = torch.ones(1), torch.tensor([1, 0]).byte()
    for packed, complaint in (
        ({"values:w": torch.ones(2)}, "2 values for 10 positions"),
        ({"values:w": torch.ones(3), "mask:w": torch.tensor([3, 0]).byte()}, "3 values for 2"),
        ({"values:w": one, "mask:w": torch.tensor([0, 128]).byte()}, "outside"),
        ({"values:w": one, "mask:w": torch.tensor([1]).byte()}, "shape"),
        ({"values:w": one, "indexes:w": torch.tensor([1])}, "int64"),
        ({"values:w": torch.ones(2), "indexes:w": torch.tensor([1]).int()}, "shape"),
        ({"values:w": torch.ones(10).double()}, "float64"),
        ({"indexes:w": torch.tensor([1]).int()}, "lacks 'values:w'"),
        ({"values:w": one, "indexes:w": torch.tensor([0]).int(), "mask:w": mask}, "'mask:w'"),
    ):
        with pytest.raises(UpdateError, match=complaint):
            unpacked(packed, 10)
