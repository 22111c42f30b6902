"""What a server says of its data and model is taken only if it can be what it says."""

from __future__ import annotations

from typing import Any

import pytest

from adaptcl.data.description import Inputs
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import PARTS, WORDS, Invitation, read_outline
from adaptcl.errors import AdaptCLError

IMAGES = Inputs((3, 20, 30), "uint8", (0.1, 0.2, 0.3), (1.0, 2.0, 0.5), ("cat", "dog"))


@pytest.mark.parametrize("change", [{"shape": [3, 2**20, 2**20]}, {"classes": []}])
def test_inputs_that_cannot_be_are_refused_by_what_is_odd(change: dict[str, Any]) -> None:
    content = Invitation("run", 0, "print", {}, IMAGES, {}).frame().to_bytes()
    sent = Frame.from_bytes(content)
    assert Invitation.read(sent).inputs == IMAGES
    sent.header["inputs"] |= change
    (name,) = change
    with pytest.raises(AdaptCLError, match=f"The server's invitation gives {name} as"):
        Invitation.read(sent)


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
