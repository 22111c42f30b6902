from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from adaptcl.units import trace
from adaptcl.units.unit_map import ResultCache


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_every_running_variance_and_every_count_is_known_whatever_can_be_cut(
    net: nn.Module, images: Tensor
) -> None:
    for fixed in ([], ["3"]):
        units = trace(net, images, fixed=fixed)
        assert units.variances == {"4.running_var"}
        assert units.counters == {"4.num_batches_tracked"}


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_a_normalisation_without_a_scale_has_a_variance_and_a_count_all_the_same(
    norm: type[nn.BatchNorm1d],
) -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 1), norm(4, affine=False, track_running_stats=True), nn.Conv1d(4, 3, 1)
    )
    units = trace(model, torch.randn(2, 2, 5))
    assert units.bn_scales == set()
    assert units.variances == {"1.running_var"}
    assert units.counters == {"1.num_batches_tracked"}


class Counts(nn.Module):
    """Counts its steps of training."""

    step: Tensor
    steps: Tensor

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*modules)
        self.register_buffer("step", torch.tensor(0))
        self.register_buffer("steps", torch.tensor([0]))
        self.register_buffer("index", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.step += 1
            self.steps += 1
        scores: Tensor = self.inner(x)
        return scores


@pytest.mark.parametrize("layers", [[], [nn.Linear(4, 4)]], ids=["nothing to cut", "cut"])
def test_whole_numbers_that_training_raises_count(layers: list[nn.Module]) -> None:
    model = Counts(*layers, nn.Linear(4, 3))
    units = trace(model, torch.randn(2, 4))
    assert units.counters == {"step", "steps"}
    assert units.integers == {"step", "steps", "index"}
    assert int(model.step) == 0


class TwoNames(nn.Module):
    """A weight, a buffer and a whole layer under two names each; one buffer is saved once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.norm = self.again = nn.BatchNorm1d(6)
        mean, shift = torch.ones(6), torch.ones(6)
        self.a.register_buffer("mean", mean)
        self.b.register_buffer("mean", mean)
        self.a.register_buffer("hidden", shift, persistent=False)
        self.b.register_buffer("shown", shift)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.b(self.again(self.norm(self.a(x))))
        return scores


def test_each_further_name_of_a_tensor_is_known_with_its_first() -> None:
    units = trace(TwoNames(), torch.randn(2, 6))
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert units.tied == {
        "b.weight": "a.weight",
        "b.mean": "a.mean",
        **{f"again.{part}": f"norm.{part}" for part in norm},
    }
    assert units.tied.keys().isdisjoint(units.parameters)
    assert set(units.tied.values()) <= units.shapes.keys()


@pytest.mark.parametrize("animal", ["VGG-like"], indirect=True)
def test_a_model_in_which_nothing_is_tied_has_no_further_names(
    net: nn.Module, images: Tensor
) -> None:
    assert trace(net, images).tied == {}


def test_a_result_is_made_once() -> None:
    made: list[str] = []
    cache = ResultCache(2)

    def make() -> str:
        made.append("a")
        return "result"

    assert [cache.get("a", make) for _ in range(3)] == ["result"] * 3
    assert made == ["a"]


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    cache = ResultCache(2)
    for key in (1, 2, 1, 3):
        cache.get(key, lambda: "first")
    assert cache.get(1, lambda: "again") == "first"
    assert cache.get(3, lambda: "again") == "first"
    assert cache.get(2, lambda: "again") == "again"
    assert len(cache) == 2


def test_threads_can_share_a_cache() -> None:
    cache = ResultCache(3)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda n: cache.get(n % 7, lambda: n % 7), range(700))
        assert list(found) == [n % 7 for n in range(700)]
    assert len(cache) <= 3
