from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.codecs import Payload
from adaptcl.codecs.changes import Reader
from adaptcl.codecs.dgc import pack, unpack, worth_places
from adaptcl.errors import UpdateError
from adaptcl.units import State


def unpacked(packed: State, size: int) -> torch.Tensor:
    reader = Reader(Payload(packed))
    tensor = unpack(reader, "w", (size,))
    reader.close()
    return tensor


@given(size=st.integers(1, 400), data=st.data())
def test_what_is_packed_is_unpacked(size: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, size - 1)))
    indexes = torch.tensor(sorted(chosen), dtype=torch.int64)
    expected = torch.zeros(size)
    expected[indexes] = torch.arange(1.0, len(indexes) + 1)
    packed = pack("w", expected[indexes], indexes, size)
    assert torch.equal(unpacked(packed, size), expected)


@given(size=st.integers(1, 5000), data=st.data())
def test_places_take_the_smaller_of_indexes_and_mask(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, size - 1))
    indexes = torch.arange(count)
    nbytes = Payload(pack("w", torch.zeros(count), indexes, size)).nbytes
    assert nbytes == 4 * count + min(4 * count, (size + 7) // 8)
    assert worth_places(count, size) == (nbytes < 4 * size)


def test_a_mask_has_the_first_place_in_its_lowest_bit() -> None:
    packed = pack("w", torch.ones(4), torch.tensor([0, 1, 7, 9]), 10)
    assert packed["mask:w"].tolist() == [0b1000_0011, 0b10]


def test_when_all_is_sent_no_places_are() -> None:
    assert pack("w", torch.ones(3), torch.arange(3), 3).keys() == {"values:w"}


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
def test_indexes_that_cannot_be_are_refused(indexes: list[int], complaint: str) -> None:
    packed = {
        "values:w": torch.ones(len(indexes)),
        "indexes:w": torch.tensor(indexes, dtype=torch.int32),
    }
    with pytest.raises(UpdateError, match=complaint):
        unpacked(packed, 100)


@pytest.mark.parametrize(
    ("packed", "complaint"),
    [
        ({"values:w": torch.ones(2)}, "2 values for 10 places"),
        ({"values:w": torch.ones(3), "mask:w": torch.tensor([3, 0]).byte()}, "3 values for 2"),
        ({"values:w": torch.ones(1), "mask:w": torch.tensor([0, 128]).byte()}, "outside"),
        ({"values:w": torch.ones(1), "mask:w": torch.tensor([1]).byte()}, "shape"),
        ({"values:w": torch.ones(1), "indexes:w": torch.tensor([1])}, "int64"),
        ({"values:w": torch.ones(2), "indexes:w": torch.tensor([1]).int()}, "shape"),
        ({"values:w": torch.ones(10).double()}, "float64"),
        ({"indexes:w": torch.tensor([1]).int()}, "lacks 'values:w'"),
        (
            {
                "values:w": torch.ones(1),
                "indexes:w": torch.tensor([0]).int(),
                "mask:w": torch.tensor([1, 0]).byte(),
            },
            "never sent out: 'mask:w'",
        ),
    ],
)
def test_values_and_places_must_belong_together(packed: State, complaint: str) -> None:
    with pytest.raises(UpdateError, match=complaint):
        unpacked(packed, 10)
