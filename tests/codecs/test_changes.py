from __future__ import annotations

import pytest
import torch

from adaptcl.codecs import Payload
from adaptcl.codecs.codec import Reader
from adaptcl.errors import UpdateError


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
