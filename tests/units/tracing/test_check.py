from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import FIXED, Kept, UnitMap, submodel, trace
from adaptcl.units.cut import zero
from adaptcl.units.tracing.check import check, pin_layers


class Helped(nn.Module):
    """An auxiliary head helps it while it trains; `last` is nothing to that head."""

    def __init__(self, help: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.last, self.drop = nn.Conv2d(6, 8, 3, padding=1), nn.Dropout(0.5)
        self.help, self.head = help, nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        scores: Tensor = self.head(self.drop(self.last(x).relu().mean((2, 3))))
        return scores + self.help(x.mean((2, 3))) if self.training else scores


class Halves(torch.autograd.Function):
    """Its backward pass knows the width that it was written for."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient.view(-1, 6) / 2


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        halved: Tensor = Halves.apply(x)  # type: ignore[no-untyped-call]
        return halved.mean(1, keepdim=True)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("never in training")


def claimed(units: UnitMap) -> set[str]:
    return {layer.name for layer in units.layers}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
@torch.no_grad()
def test_a_layer_whose_slots_are_wrong_is_pinned_and_the_others_stay(
    net: nn.Module, images: Tensor
) -> None:
    """The map of another net, in which one layer's columns are not said to follow."""
    units = trace(net, images)
    follow = tuple(s for s in units.slots if (s.tensor, s.dim) != ("c.weight", 1))
    lying = replace(units, slots=follow)
    assert claimed(check(net.eval(), lying, images)[0]) == {"a.0", "c"}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
@torch.no_grad()
def test_a_unit_that_is_cut_but_not_silent_is_found_by_its_output(
    net: nn.Module, images: Tensor
) -> None:
    """Shapes fit, yet the batch norm goes on shifting what should be zero."""
    units = trace(net, images)
    slots = (replace(s, owned=s.owned and s.tensor != "b.1.bias") for s in units.slots)
    lying = replace(units, slots=tuple(slots))
    assert claimed(check(net.eval(), lying, images)[0]) == {"a.0", "c"}


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_pinning_a_layer_renumbers_the_rest(net: nn.Module, images: Tensor) -> None:
    units = trace(net, images)
    fewer = pin_layers(units, {"b.0"})
    assert [(layer.name, layer.units) for layer in fewer.layers] == [
        ("a.0", range(6)),
        ("c", range(6, 16)),
    ]
    assert fewer.bn_scales == {"a.1.weight"}
    assert all((slot.ids != FIXED).any() for slot in fewer.slots)
    slots = {(slot.tensor, slot.dim): slot.ids.tolist() for slot in fewer.slots}
    assert slots["head.weight", 1] == list(range(6, 16))
    assert ("b.1.weight", 0) not in slots


@pytest.mark.parametrize("help", [nn.Linear(6, 5), Halved()], ids=["forward", "backward"])
def test_a_layer_without_which_training_fails_is_pinned_and_the_others_stay(
    help: nn.Module, images: Tensor
) -> None:
    model = Helped(help)
    units = trace(model, images)
    assert claimed(units) == {"last"}
    kept = units.everything()
    kept[::2] = False
    submodel(model, units, kept).train()(images).sum().backward()


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + torch.randn_like(x)).sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("help", "layers"),
    [(Sum(), {"first", "last"}), (Mean(), {"last"}), (Noise(), {"last"})],
    ids=["sum", "mean", "noise"],
)
def test_what_is_only_done_in_training_decides_what_is_cut(
    help: nn.Module, layers: set[str], images: Tensor
) -> None:
    """A sum does not mind zeros that are missing; a mean does, and noise is no zero."""
    assert claimed(trace(Helped(help), images)) == layers


def test_a_model_that_cannot_be_trained_at_all_is_traced_as_if_it_were_not_to_be(
    images: Tensor,
) -> None:
    assert claimed(trace(Helped(Fails()), images)) == {"first", "last"}


def test_one_sample_is_enough_for_the_check(images: Tensor) -> None:
    """Though this head for training cannot train on one."""
    help = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5))
    assert claimed(trace(Helped(help), images[:1])) == {"last"}


def test_the_pass_in_training_mode_leaves_no_trace(images: Tensor) -> None:
    """Neither in the statistics of a batch norm, nor in gradients, nor in the random numbers."""
    model = Helped(nn.Linear(6, 5)).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = torch.get_rng_state()
    trace(model, images)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Ends(nn.Module):
    """Two layers, and something that is done with the scores."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(192, 16), nn.Linear(16, 5)
        self.shift, self.end = nn.Parameter(torch.zeros(5)), end

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.first(x.flatten(1)).relu())
        return self.end(scores.sigmoid() + self.shift)


def chaotic(x: Tensor) -> Tensor:
    """Doubles every difference 25 times."""
    for _ in range(25):
        x = 4 * x * (1 - x)
    return x


def test_rounding_that_a_model_magnifies_is_no_wrong_cut(images: Tensor) -> None:
    torch.manual_seed(0)
    assert claimed(trace(Ends(lambda x: chaotic(x.frac())), images)) == {"first"}


def test_nan_is_no_agreement(images: Tensor) -> None:
    """Even the same everywhere, it hides what is wrong behind it."""
    assert claimed(trace(Ends(lambda x: x - x.mean() * torch.nan), images)) == set()


def test_weights_of_the_trial_that_make_nan_are_left_as_they_are(images: Tensor) -> None:
    """The trial shifts everything beyond the reach of this logarithm."""
    assert claimed(trace(Ends(lambda x: (1 - x).log()), images)) == {"first"}


def test_a_mask_that_the_example_never_uses_counts_both_ways(images: Tensor) -> None:
    class Masks(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.first, self.head, self.value = nn.Linear(192, 16), nn.Linear(16, 5), value

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1)).relu()
            normal = x.flatten(1).amax(1, keepdim=True) < 100
            scores: Tensor = self.head(torch.where(normal, h, self.value))
            return scores

    for value in (0.0, 1.0):
        units = trace(Masks(value), images)
        assert claimed(units) == {"first"}
        owned = {(slot.tensor, slot.dim) for slot in units.slots if slot.owned}
        assert (("head.weight", 1) in owned) == (value == 1.0)


def test_alpha_dropout_gives_no_zeros_in_training(images: Tensor) -> None:
    def net(drop: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.SELU(), drop, nn.Linear(16, 5))

    assert claimed(trace(net(nn.Dropout(0.5)), images)) == {"1"}
    assert claimed(trace(net(nn.AlphaDropout(0.5)), images)) == set()


class Squeezes(nn.Module):
    """Takes a layer of which one unit is left for no dimension at all."""

    def __init__(self, *, when: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1)
        self.head, self.when = nn.Linear(16, 5), when

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.first(x).relu()).mean((2, 3), keepdim=True)
        squeezes = self.training == (self.when == "in training")
        scores: Tensor = self.head(x.squeeze() if squeezes else x.flatten(1))
        return scores


@pytest.mark.parametrize("when", ["in training", "elsewhere"])
def test_a_layer_of_which_one_unit_is_not_enough_is_pinned(when: str, images: Tensor) -> None:
    assert claimed(trace(Squeezes(when=when), images)) == {"first"}


class GoesByWidth(nn.Module):
    """Needs no projection where both sides have the same width, it thinks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 32, 1)
        self.projection, self.head = nn.Conv2d(16, 32, 1), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.wide(x)
        x = x if x.shape == y.shape else self.projection(x)
        scores: Tensor = self.head((x + y).relu().mean((2, 3)))
        return scores


def test_a_layer_that_can_get_as_narrow_as_one_it_is_compared_with_is_pinned(
    images: Tensor,
) -> None:
    model = GoesByWidth()
    units = trace(model, images)
    assert len(units.layers) == 1
    for left in range(1, 16):
        kept = units.everything()
        kept[left:] = False
        same = zeroed(model, units, kept)(images)
        torch.testing.assert_close(submodel(model, units, kept)(images), same)


def zeroed(model: nn.Module, units: UnitMap, kept: Kept) -> nn.Module:
    whole = copy.deepcopy(model)
    whole.load_state_dict(zero(model.state_dict(), units, kept))
    return whole
