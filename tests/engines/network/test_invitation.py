"""What a server says of its data and model is taken only if it can be what it says."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.data.samples import Inputs
from adaptcl.engines.network.fingerprint import PARTS, WORDS
from adaptcl.engines.network.invitation import read_inputs, read_outline
from adaptcl.errors import AdaptCLError

IMAGES = Inputs((3, 20, 30), "uint8", (0.1, 0.2, 0.3), (1.0, 2.0, 0.5), ("cat", "dog"))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def as_sent(inputs: Inputs) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(json.dumps(inputs.to_json()))
    return sent


@pytest.mark.parametrize(
    "inputs",
    [
        IMAGES,
        Inputs((1, 8, 8), "uint8", None, None, ("0",)),
        Inputs((12,), "int64", None, None, ("yes", "no")),
        Inputs((), "float32", None, None, ("yes", "no")),
    ],
)
def test_inputs_arrive_as_they_are(inputs: Inputs) -> None:
    assert read_inputs(as_sent(inputs)) == inputs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shape", [3, 20]),
        ("shape", [3, 20, 0]),
        ("shape", [3, 20, -30]),
        ("shape", [3, 20, 30.0]),
        ("shape", [3, 20, True]),
        ("shape", [1] * 9),
        ("shape", [3, 2**20, 2**20]),
        ("shape", "RGB"),
        ("shape", None),
        ("kind", "object"),
        ("kind", ["uint8"]),
        ("mean", [0.1, 0.2]),
        ("mean", [0.1, 0.2, float("nan")]),
        ("mean", [0.1, 0.2, "0.3"]),
        ("mean", [0.1, 0.2, True]),
        ("std", None),
        ("std", [1.0, 2.0, 0.0]),
        ("std", [1.0, 2.0, -1.0]),
        ("std", [1.0, 2.0, float("inf")]),
        ("std", [1.0, 2.0, 10**400]),
        ("classes", []),
        ("classes", [1, 2]),
        ("classes", "cat"),
        ("classes", ["x" * 1001]),
        ("classes", ["x"] * (2**16 + 1)),
    ],
    ids=lambda value: f"{value!r:.25}",
)
def test_inputs_that_cannot_be_are_refused_by_what_is_odd(name: str, value: object) -> None:
    with pytest.raises(AdaptCLError, match=f"The server's invitation gives {name} as"):
        read_inputs({**as_sent(IMAGES), name: value})


def test_only_images_are_normalised() -> None:
    tokens = Inputs((12,), "int64", (0.1,), (1.0,), ("yes", "no"))
    with pytest.raises(AdaptCLError, match="gives mean as"):
        read_inputs(as_sent(tokens))


@given(st.sampled_from(["shape", "kind", "mean", "std", "classes", "more"]), ANYTHING)
def test_inputs_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    with contextlib.suppress(AdaptCLError):
        assert isinstance(read_inputs({**as_sent(IMAGES), name: value}), Inputs)


@given(ANYTHING)
def test_what_is_no_description_at_all_is_refused(value: object) -> None:
    with pytest.raises(AdaptCLError, match="gives inputs as"):
        read_inputs(value)


@pytest.mark.parametrize(
    "outline",
    [
        None,
        ["conv"],
        {"conv": 3},
        {"conv": "\x1b[31m"},
        {"\x1b[2J": "conv"},
        {"conv": "x" * (WORDS + 1)},
        {"x" * (WORDS + 1): "conv"},
        {str(number): "" for number in range(PARTS + 1)},
    ],
    ids=lambda value: f"{value!r:.25}",
)
def test_an_outline_is_so_many_short_texts_that_steer_no_terminal(outline: object) -> None:
    assert read_outline({"conv": "Conv2d()"}) == {"conv": "Conv2d()"}
    with pytest.raises(AdaptCLError, match="gives outline as"):
        read_outline(outline)
