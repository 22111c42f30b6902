"""Where two models differ is said by the first module or tensor that does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptcl.engines.network.invitation import (
    WORDS,
    MismatchError,
    fingerprint,
    outline,
    read_outline,
    refuse_other_model,
)
from adaptcl.units.tracing.trace import without_units


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
