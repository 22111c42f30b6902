from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptcl.units import parameters, trace
from benchmarks.benchmark import Request
from benchmarks.zoo import compare
from benchmarks.zoo.catalogue import ZooModel, models
from benchmarks.zoo.judge import with_adaptcl


@pytest.mark.slow
def test_all_models_can_keep_half_and_a_cut_equals_zeroing() -> None:
    chosen = [each for each in models() if each.library in ("transformers", "hand-made")]
    found = {each.path: with_adaptcl(*each.built()) for each in chosen}
    assert all(each["evaluation"] and each["training"] for each in found.values())
    assert all(each["least"] <= 0.5 for each in found.values())
    assert sum(each["halved"] <= 0.5 for each in found.values()) >= 0.75 * len(found)


def _small() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4)


def test_models_are_judged_by_both_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> tuple[nn.Module, torch.Tensor]:
        raise ValueError("no such model")

    zoo = [ZooModel("own", "small", _small), ZooModel("own", "broken", fails)]
    monkeypatch.setattr(compare, "models", lambda: zoo)
    report = compare.measure(Request(models="own/*"))
    shares = {row.label: row.value for row in report.rows}
    assert shares["can keep half of the parameters"] == 50
    assert shares["a cut equals zeroing in training"] == 100
    assert shares["Torch-Pruning: raises"] == 50
    model, example = zoo[0].built()
    units = trace(model, example)
    halved = report.details["own/small"]["adaptcl"]["halved"]
    kept = torch.arange(8) < 4
    assert halved == parameters(units, kept) / parameters(units, units.everything())
