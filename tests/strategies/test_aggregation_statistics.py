"""How the statistics of batch norms are merged by worker and by change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.strategies import Job
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings
from adaptcl.units import Kept, State, UnitMap, cut, trace

Jobs = Callable[..., Job]


def merged(
    units: UnitMap, previous: State, *updates: tuple[State, Kept, float], **settings: Any
) -> State:
    total = Aggregation(units, previous, AggregationSettings(**settings))
    for state, kept, weight in updates:
        total.add(state, kept, weight)
    return total.result(previous)


class Normed(nn.Module):
    """One convolution with batch norm; hardly any ε, so that the arithmetic is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(3, eps=1e-12)
        self.head = nn.Linear(3, 2)

    def normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        return out

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.normed(x).mean((2, 3)))
        return scores


@pytest.fixture
def normed() -> Normed:
    torch.manual_seed(0)
    model = Normed().eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()  # type: ignore[union-attr]
        model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        model.norm.weight.uniform_(0.5, 2)
        model.norm.bias.normal_()
    return model


def test_deviations_are_averaged_also_where_a_batch_norm_has_no_scale_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1))
    units = trace(model, torch.zeros(2, 1))
    assert units.count == 2
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    without = torch.tensor([True, False])
    updates = [(before, units.everything(), 1.0), (cut(before, units, without), without, 1.0)]
    # The second unit's filter is halved, and so is the deviation of what it gives.
    assert merged(units, before, *updates)["1.running_var"].tolist() == [1, 0.25]


def test_variances_of_units_that_are_never_cut_are_averaged_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1), nn.BatchNorm1d(1))
    units = trace(model, torch.zeros(2, 1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    updates = [
        ({**before, "2.running_var": torch.tensor([variance])}, units.everything(), 1.0)
        for variance in (1.0, 9.0)
    ]
    assert merged(units, before, *updates)["2.running_var"].tolist() == [5]


def test_deviations_are_averaged_not_variances(
    with_batch_norm: Jobs,
) -> None:
    job = with_batch_norm(1, 1)
    states = []
    for variance in (1.0, 9.0):
        state = dict(job.state)
        state["1.running_var"] = torch.full((4,), variance)
        states.append((state, job.units.everything(), 1.0))
    assert merged(job.units, job.state, *states)["1.running_var"].tolist() == [4] * 4


class Depthwise(Normed):
    """A depthwise convolution with a norm of its own behind the first norm."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Conv2d(3, 3, 1, groups=3, bias=False)
        self.last = nn.BatchNorm2d(3, eps=1e-12)

    def normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.depth(super().normed(x).relu()))
        return out


def frozen_body(model: Normed) -> Normed:
    for each in (model.conv, model.norm):
        each.requires_grad_(False)
    return model


@torch.no_grad()
def merged_again_and_again(model: Normed, share: float, rounds: int = 1, **settings: Any) -> Normed:
    """What becomes of a model, unit 1 of which this share holds, when nobody changes anything."""
    units = trace(model, torch.zeros(1, 1, 6, 6))
    without = torch.tensor([True, False, True])
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(rounds):
        updates = [
            (cut(state, units, kept), kept, weight)
            for kept, weight in ((units.everything(), share), (without, 1 - share))
        ]
        state = merged(units, state, *updates, **settings)
    result = type(model)().eval()
    result.load_state_dict(state)
    return result


FADING: list[tuple[dict[str, Any], float]] = [
    ({}, 1.0),
    ({"aggregation": "by-change"}, 0.0),
    ({"aggregation": "by-change", "fading": 0.1}, 0.1),
    ({"aggregation": "by-change", "fading": 0.5}, 0.5),
]
"""Settings, and how much of itself a unit loses by them where it is missing."""


@pytest.mark.slow
@torch.no_grad()
@given(share=st.sampled_from([0.125, 0.25, 0.5, 0.75]), rule=st.sampled_from(FADING))
def test_statistics_behind_a_depthwise_convolution_scale_as_what_they_describe(
    share: float, rule: tuple[dict[str, Any], float]
) -> None:
    settings, fading = rule
    left = 1 - fading * (1 - share)
    torch.manual_seed(0)
    images = torch.randn(64, 1, 6, 6)
    model = Depthwise()
    with torch.no_grad():
        for scale in (model.norm.weight, model.last.weight, model.norm.bias, model.last.bias):
            scale.uniform_(0.5, 2)
    for norm in (model.norm, model.last):
        norm.momentum = None  # statistics of exactly these images
    model.train()(images)
    expected = model.eval().normed(images)
    found = merged_again_and_again(model, share, **settings).normed(images)
    torch.testing.assert_close(found[:, [0, 2]], expected[:, [0, 2]], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[:, 1], left * expected[:, 1], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("settings", "fading"), FADING)
def test_a_unit_that_is_missing_fades_by_its_output_alone_round_after_round(
    normed: Normed, settings: dict[str, Any], fading: float
) -> None:
    images = torch.randn(5, 1, 6, 6)
    expected = normed.normed(images)
    found = merged_again_and_again(normed, 0.25, rounds=3, **settings).normed(images)
    left = (1 - fading * 0.75) ** 3
    torch.testing.assert_close(found[:, [0, 2]], expected[:, [0, 2]], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, 1], left * expected[:, 1], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("settings", "fading"), FADING)
def test_statistics_behind_a_filter_that_nobody_trains_do_not_fade(
    normed: Normed, settings: dict[str, Any], fading: float
) -> None:
    images = torch.randn(5, 1, 6, 6)
    expected = normed.normed(images)
    found = merged_again_and_again(frozen_body(normed), 0.1, rounds=5, **settings)
    torch.testing.assert_close(found.normed(images), expected)


def test_behind_a_filter_that_nobody_trains_the_mean_is_over_those_who_hold_it() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    units = trace(model, torch.zeros(2, 1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = {**before, "1.running_var": torch.tensor([9.0, 9.0]), "1.running_mean": torch.ones(2)}
    both, first = units.everything(), torch.tensor([True, False])
    updates = [(before, both, 1.0), (other, both, 1.0), (cut(before, units, first), first, 2.0)]
    result = merged(units, before, *updates)
    assert result["1.running_var"].tolist() == [2.25, 4]
    assert result["1.running_mean"].tolist() == [0.25, 0.5]
    assert result["1.weight"].tolist() == [1, 0.5]
