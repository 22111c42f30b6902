"""λ follows from the strength, and from what others found on the first model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl import storage
from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.lasso_lambda import FirstLambdas, lambda_of_batch
from adaptcl.training.objectives.objective import CLASSIFICATION
from adaptcl.units import UnitMap, submodel, trace


@pytest.mark.parametrize("strength", [0.1, 0.9])
def test_lambda_of_a_batch_makes_the_lasso_that_share_of_the_loss(
    net: nn.Module, units: UnitMap, digits: Samples, strength: float
) -> None:
    model = submodel(net, units, units.everything())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs, labels = digits.batch(torch.arange(16))
    found = lambda_of_batch(model, units, units.everything(), digits, torch.arange(16), strength)
    assert all(torch.equal(model.state_dict()[name], t) for name, t in before.items())
    loss = F.cross_entropy(model.train()(inputs), labels).item()
    lasso = found * GroupLasso(model, units, units.everything()).penalty()
    assert lasso / (loss + lasso) == pytest.approx(strength, rel=1e-5)


def test_without_strength_or_anything_to_penalise_lambda_is_0(
    net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    def found(model: nn.Module, units: UnitMap, strength: float) -> float:
        every = units.everything()
        return lambda_of_batch(model, units, every, digits, torch.arange(16), strength)

    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert found(net, units, 0.0) == 0
    assert found(flat, trace(flat, torch.zeros(2, 1, 8, 8)), 0.9) == 0


def test_a_negative_loss_has_no_share_that_the_lasso_could_be(
    net: nn.Module, units: UnitMap, digits: Samples
) -> None:
    def found(strength: float, constant: float = 0.0) -> float:
        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(outputs, labels) - 10 + constant

        every, batch = units.everything(), torch.arange(16)
        negative = replace(CLASSIFICATION, loss=loss)
        return lambda_of_batch(net, units, every, digits, batch, strength, negative)

    with pytest.raises(SettingError, match=r"loss is negative \(-7.*strength = 0"):
        found(0.9)
    assert found(0.0) == 0
    assert found(0.9, constant=10.0) > 0


WHOLE, HALF = torch.ones(8, dtype=torch.bool), torch.arange(8) < 4


def found(*values: float | None) -> FirstLambdas:
    lambdas = FirstLambdas()
    for value in values:
        lambdas.add(WHOLE, value)
    return lambdas


def test_later_workers_are_told_the_mean_of_those_found() -> None:
    assert found(0.01, 0.03).mean(WHOLE) == pytest.approx(0.02)


def test_nobody_is_told_anything_while_nothing_was_found() -> None:
    assert found().mean(WHOLE) is None
    assert found(None).mean(WHOLE) is None


def test_lambdas_of_other_sizes_count_only_where_there_is_none_of_this_size() -> None:
    lambdas = found(0.01, 0.03)
    assert lambdas.mean(HALF) == pytest.approx(0.02)
    lambdas.add(HALF, 0.08)
    assert lambdas.mean(HALF) == 0.08
    assert lambdas.mean(WHOLE) == pytest.approx(0.02)
    assert lambdas.mean(torch.arange(8) < 1) == pytest.approx(0.04)


def test_a_snapshot_holds_the_lambdas_found(tmp_path: Path) -> None:
    lambdas, other = found(0.01, 0.03), FirstLambdas()
    lambdas.add(HALF, 0.08)
    storage.save(tmp_path / "file", lambdas.snapshot())
    other.restore(storage.load(tmp_path / "file"))
    assert [other.mean(kept) for kept in (WHOLE, HALF)] == [lambdas.mean(WHOLE), 0.08]
