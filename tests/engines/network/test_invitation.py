"""What a server says of its data and model is taken only if it can be what it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.data.description import Inputs
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import (
    PARTS,
    WORDS,
    Invitation,
    MismatchError,
    fingerprint,
    outline,
    read_outline,
    refuse_other_model,
)
from adaptcl.errors import AdaptCLError
from adaptcl.units.tracing.numbering import without_units

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


def net(hidden: int = 8, classes: int = 4, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, classes), *more)


def refuse(own: nn.Module, server: nn.Module) -> None:
    units = without_units(server)
    refuse_other_model(own, without_units(own), fingerprint(server, units), outline(server, units))


def test_the_same_model_with_other_values_is_the_same() -> None:
    refuse(net(), net())


@pytest.mark.parametrize(
    ("own", "server", "words"),
    [
        (
            net(9),
            net(8),
            r"0 is Linear\(in_features=6, out_features=8, .* at the server and Linear",
        ),
        (net(8, 5), net(8, 4), r"2 is Linear\(.*out_features=4, .*out_features=5, .* the worker"),
        (net(8, 4, nn.Tanh()), net(), r"3 is Tanh\(\) at the worker and missing at the server"),
        (net(), net(8, 4, nn.Tanh()), r"3 is Tanh\(\) at the server and missing at the worker"),
    ],
)
def test_a_difference_is_named(own: nn.Module, server: nn.Module, words: str) -> None:
    with pytest.raises(MismatchError, match=f"differs from the server's: {words}"):
        refuse(own, server)


class Scaled(nn.Module):
    """A model with a tensor that no module prints."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(inputs)
        return scores * self.scale


def test_a_tensor_that_no_module_prints_is_named_with_both_shapes() -> None:
    words = r"scale is a tensor \[1\] at the server and a tensor \[4\] at the worker"
    with pytest.raises(MismatchError, match=words):
        refuse(Scaled(4), Scaled(1))


def test_where_only_the_printed_forms_differ_this_is_said() -> None:
    class Named(nn.Sequential):
        def __repr__(self) -> str:
            return f"{id(self)}"

    with pytest.raises(MismatchError, match="but their printed forms differ"):
        refuse(Named(*net()), Named(*net()))


def test_an_outline_is_never_more_than_a_worker_reads() -> None:
    class Wordy(nn.Identity):
        def extra_repr(self) -> str:
            return "x\n\x1b" * WORDS

    model = net(8, 4, Wordy())
    told = outline(model, without_units(model))
    assert read_outline(told) == told
