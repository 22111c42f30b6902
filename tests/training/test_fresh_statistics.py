from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.models import build
from adaptcl.training.evaluation import FreshStatistics

NORM = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2), nn.BatchNorm1d(2))


def part(begin: float, count: int) -> Samples:
    """Samples around `begin`, each feature of another spread."""
    draw = torch.Generator().manual_seed(int(begin))
    inputs = begin + torch.randn(count, 3, generator=draw) * torch.tensor([0.1, 1.0, 3.0])
    return Samples(inputs, torch.zeros(count, dtype=torch.int64))


def test_statistics_are_those_of_the_samples_whatever_was_there_before() -> None:
    parts = [part(0, 400), part(5, 400)]
    state = {**NORM.state_dict(), "0.running_mean": torch.full((3,), 77.0)}
    found = FreshStatistics(NORM, parts, 1000).of(state)
    inputs = torch.cat([each.inputs for each in parts])
    torch.testing.assert_close(found["0.running_mean"], inputs.mean(0))
    # The mean of the variances of mixed batches.
    torch.testing.assert_close(found["0.running_var"], inputs.var(0), rtol=0.05, atol=0)


def test_later_layers_are_measured_behind_the_fresh_statistics_of_earlier_ones() -> None:
    parts = [part(3, 500)]
    measured = FreshStatistics(NORM, parts, 500).of(NORM.state_dict())
    model = nn.Sequential(*NORM).eval()
    model.load_state_dict(measured)
    with torch.no_grad():
        before_last = model[:3](parts[0].inputs)
    torch.testing.assert_close(measured["3.running_mean"], before_last.mean(0), atol=0.01, rtol=0)


def test_nothing_else_changes_and_nothing_is_drawn() -> None:
    state = {name: tensor.clone() for name, tensor in NORM.state_dict().items()}
    given = dict(state)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = FreshStatistics(NORM, [part(1, 30)], 20).of(state)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name for name in state if found[name] is not given[name]} == {
        *("0.running_mean", "0.running_var", "3.running_mean", "3.running_var"),
    }
    assert all(torch.equal(tensor, NORM.state_dict()[name]) for name, tensor in state.items())


def test_every_part_has_its_share_of_the_samples_and_all_are_mixed() -> None:
    parts = [part(0, 100), part(50, 300), part(1000, 100)]
    samples = FreshStatistics(NORM, parts, 50)._samples
    kinds = (samples.inputs.mean(1) / 40).round().clamp(max=2)
    assert [int((kinds == kind).sum()) for kind in (0, 1, 2)] == [10, 30, 10]
    assert set(kinds[:15].tolist()) == {0, 1, 2}


def test_a_model_without_such_layers_is_given_back_as_it_is() -> None:
    plain = nn.Sequential(
        nn.Linear(3, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False)
    )
    state = plain.state_dict()
    assert FreshStatistics(plain, [part(0, 10)], 10).of(state) is state


def test_no_batch_has_a_single_sample() -> None:
    measured = FreshStatistics(NORM, [part(0, 251)], 251).of(NORM.state_dict())
    assert all(torch.isfinite(tensor).all() for tensor in measured.values())
    with pytest.raises(SettingError, match="2 samples or more"):
        FreshStatistics(NORM, [part(0, 10)], 1)


def test_it_mends_a_model_whose_statistics_are_not_its_own() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(60, 3, 32, 32, generator=draw)
    samples = Samples(images, torch.randint(10, (60,), generator=draw))
    model = build("small", (3, 32, 32), 10, seed=1)
    model.train()(samples.batch(torch.arange(60))[0])
    right = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrong = {name: t * 9 if name.endswith("running_var") else t for name, t in right.items()}
    mended = FreshStatistics(model, [samples], 60)
    for name, tensor in mended.of(wrong).items():
        assert torch.equal(tensor, mended.of(right)[name])
