from __future__ import annotations

import pytest
import torch

from adaptcl.training import Recipe
from adaptcl.training.group_lasso import GroupLasso
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import retention
from benchmarks.subjects import LASSO, PlainLasso, Subject, copied, plain_training, subject


@pytest.fixture(scope="module")
def small() -> Subject:
    return subject("small", 32)


def test_a_cut_has_the_retention_asked_for(small: Subject) -> None:
    for gamma in (1.0, 0.5, 0.25):
        assert retention(small.units, small.cut(gamma)) == pytest.approx(gamma, abs=0.02)


def test_the_plain_penalty_is_that_of_the_package(small: Subject) -> None:
    own = GroupLasso(small.model, small.units, small.units.everything())
    plain = PlainLasso(small.units).penalty(small.model).detach()
    assert float(plain) == pytest.approx(own.penalty())


def test_the_plain_loop_trains_as_the_package_does(small: Subject) -> None:
    """The baseline must do the same work, or the comparison says nothing."""
    everything, recipe = small.units.everything(), Recipe(batch_size=16)
    indexes = small.batches(3, 16)
    plain = copied(small.model)
    last = plain_training(plain, small.samples, indexes, recipe, PlainLasso(small.units))
    trainer = PlainTrainer(small.model, small.units, small.samples)
    own = trainer.load(everything, dict(small.model.state_dict()))
    losses = trainer.run(indexes, None, recipe, LASSO)
    assert float(losses[-1]) == pytest.approx(float(last), rel=1e-4)
    for mine, its in zip(own.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, its, atol=1e-5)
