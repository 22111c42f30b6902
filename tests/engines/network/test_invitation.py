"""What a server says of its data and model is taken only if it can be what it says."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from adaptcl.data.description import SampleForm
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

IMAGES = SampleForm((3, 20, 30), "uint8", (0.1, 0.2, 0.3), (1.0, 2.0, 0.5), ("cat", "dog"))


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


TANH = nn.Tanh()


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
        (net(8, 4, TANH), net(8, 4, TANH, TANH), r"4 is Tanh\(\) at the server and missing at"),
        (net(), net(8, 4, nn.Tanh()), r"3 is Tanh\(\) at the server and missing at the worker"),
    ],
)
def test_a_difference_is_named(own: nn.Module, server: nn.Module, words: str) -> None:
    with pytest.raises(MismatchError, match=f"differs from the server's: {words}"):
        refuse(own, server)


class Scaled(nn.Module):
    """A model with a tensor that no module prints."""

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        if isinstance(scale, nn.Parameter):
            self.scale = scale
        else:
            self.register_buffer("scale", scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(inputs)
        return scores * self.scale


ONE = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (nn.Parameter(torch.ones(4)), r"a parameter \[4\]"),
        (nn.Parameter(torch.ones(1), requires_grad=False), r"a frozen parameter \[1\]"),
        (torch.ones(1), r"a buffer \[1\]"),
    ],
)
def test_of_a_tensor_that_no_module_prints_it_is_said_what_it_is(
    scale: torch.Tensor, words: str
) -> None:
    with pytest.raises(MismatchError, match=rf"scale is a parameter \[1\] at .* and {words} at"):
        refuse(Scaled(scale), Scaled(ONE))


def test_a_weight_that_only_the_server_shares_is_named() -> None:
    shared = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    shared[1].weight = shared[0].weight
    words = r"1\.weight is 0\.weight \[6, 6\] again at the server and a parameter \[6, 6\] at the"
    with pytest.raises(MismatchError, match=words):
        refuse(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), shared)


def test_the_same_modules_in_another_order_are_another_model() -> None:
    parts = {"one": nn.Linear(6, 6), "other": nn.Linear(6, 6)}
    with pytest.raises(MismatchError, match="the same, but in another order"):
        refuse(
            nn.Sequential(OrderedDict(reversed(parts.items()))), nn.Sequential(OrderedDict(parts))
        )


def test_a_difference_that_no_outline_holds_is_refused() -> None:
    class Wordy(nn.Identity):
        def __init__(self, words: str) -> None:
            super().__init__()
            self.extra_repr = lambda: WORDS * "x" + words  # type: ignore[method-assign]

    with pytest.raises(MismatchError, match=r"only after 5000 modules .* 200 letters of one of"):
        refuse(net(8, 4, Wordy("y")), net(8, 4, Wordy("z")))


def test_a_model_that_prints_where_it_lies_in_memory_is_no_other_model() -> None:
    class Named(nn.Sequential):
        def __repr__(self) -> str:
            return f"{id(self)}"

    refuse(Named(*net()), Named(*net()))


def test_an_outline_is_never_more_than_a_worker_reads() -> None:
    class Wordy(nn.Identity):
        def extra_repr(self) -> str:
            return "x\n\x1b" * WORDS

    model = net(8, 4, Wordy())
    told = outline(model, without_units(model))
    assert read_outline(told) == told
