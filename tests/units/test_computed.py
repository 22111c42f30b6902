from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as older_spectral_norm

from adaptcl.units import describe
from adaptcl.units.describe import computed_weight


@pytest.mark.parametrize(
    ("norm", "name", "kind"),
    [
        (parametrizations.weight_norm, "0.parametrizations.weight", "WeightNorm"),
        (parametrizations.spectral_norm, "0.parametrizations.weight", "SpectralNorm"),
        (older_spectral_norm, "0", "spectral_norm or pruning"),
    ],
)
def test_a_weight_that_is_computed_is_said_to_be_and_what_to_do(
    norm: Callable[[nn.Module], nn.Module], name: str, kind: str
) -> None:
    model = nn.Sequential(norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    described = {each.name: each for each in describe(model, torch.randn(2, 3)).modules}
    (why,) = described[name].pinned
    assert why.startswith(f"its weight is computed in every pass by {kind}; take that off with ")


def test_once_it_is_taken_off_the_layer_can_be_cut() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    assert describe(model, torch.randn(2, 3)).cuttable_parameters == 0
    parametrize.remove_parametrizations(model[0], "weight")
    assert describe(model, torch.randn(2, 3)).modules[0].cuttable == 4


def test_a_plain_layer_has_nothing_to_take_off() -> None:
    assert computed_weight(nn.Linear(3, 4)) is None
