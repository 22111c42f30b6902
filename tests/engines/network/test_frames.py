"""Frames hold what was put in, and bytes of others never do more than fail."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.network.frames import (
    Frame,
    from_record,
    pack_kept,
    printable,
    to_record,
    unpack_kept,
)
from adaptcl.errors import UpdateError


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_kept_units_come_back_as_they_were(units: list[bool]) -> None:
    kept = torch.tensor(units)
    assert torch.equal(unpack_kept(pack_kept(kept), len(units)), kept)
    assert len(pack_kept(kept)) == -(-len(units) // 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float32, torch.int64])
def test_tensors_of_every_kind_travel_unchanged(dtype: torch.dtype) -> None:
    sent = Frame({"round": 3, "text": "φ"}, {"a": torch.arange(6).view(2, 3).to(dtype)})
    got = Frame.from_bytes(from_record(to_record(sent.to_bytes())))
    assert got.header == sent.header
    assert got.tensors["a"].dtype == dtype
    assert torch.equal(got.tensors["a"], sent.tensors["a"])


def test_what_a_worker_writes_into_a_frame_does_not_steer_the_servers_terminal() -> None:
    kind = "\x1b]0;owned\x07\x1b[2J" + 10_000 * "x"
    head = json.dumps({"a": {"dtype": kind, "shape": [1], "data_offsets": [0, 4]}}).encode()
    with pytest.raises(UpdateError, match="cannot be read") as refused:
        Frame.from_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


@given(st.binary(max_size=300))
def test_bytes_that_are_no_frame_are_refused(content: bytes) -> None:
    with pytest.raises(UpdateError):
        Frame.from_bytes(content)


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_frame_with_one_byte_changed_is_read_or_refused(where: int, change: int) -> None:
    content = bytearray(Frame({"round": 3}, {"a": torch.zeros(9), "b": torch.ones(3)}).to_bytes())
    content[where % len(content)] ^= change
    try:
        frame = Frame.from_bytes(bytes(content))
    except UpdateError:
        return
    assert isinstance(frame.header, dict)


def test_a_text_is_shown_without_what_is_not_printable_and_not_at_any_length() -> None:
    assert printable("a\x1b]0;b\x07\nc") == "a]0;bc"
    assert printable("φ × 3") == "φ × 3"
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 10**6) == "x" * 500 + "…"
