"""The workers' sub-models after a run."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.models import build
from adaptcl.runs.files.sub_models import Savings, SubModels
from adaptcl.training.objectives.evaluation import score
from adaptcl.units import trace
from adaptcl.units.size import smallest

IMAGES = torch.randn(2, 3, 6, 6)


def shuffling() -> nn.Module:
    """Grouped convolutions, which a shuffle makes narrower alike, and a norm over channels."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 1, groups=4), nn.ChannelShuffle(4),
        nn.Conv2d(32, 32, 1, groups=4), nn.GroupNorm(1, 32), nn.Flatten(), nn.Linear(512, 2),
    )  # fmt: skip


def scores(found: SubModels, model: nn.Module) -> Tensor:
    result: Tensor = found.cut(model, 0)(IMAGES)
    return result


@torch.no_grad()
def test_what_is_read_back_from_a_file_is_cut_as_before() -> None:
    model = shuffling().eval()
    units = trace(model, IMAGES)
    kept = units.everything()
    for layer in units.layers:
        kept[layer.units.start] = False
    before = SubModels.of(units, [kept, kept])
    after = SubModels.from_tree(before.to_tree())
    assert sum(each.numel() for each in after.cut(model, 1).parameters()) < 0.8 * sum(
        each.numel() for each in model.parameters()
    )
    assert torch.equal(scores(before, model), scores(after, model))


def test_where_no_flops_can_be_counted_none_are_said_to_be_saved() -> None:
    units = replace(trace(shuffling(), IMAGES), work=())
    assert Savings.of(units, [units.everything(), smallest(units)]).flops_saved == 0


def test_sub_models_are_tested_each_once_and_the_whole_one_as_the_model() -> None:
    model = build("small", (1, 8, 8), 3, seed=1).eval()
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(60, 1, 8, 8, generator=draw)
    samples = Samples(images, torch.randint(3, (60,), generator=draw))
    units = trace(model, images[:2])
    half = units.everything().clone()
    half[::2] = False
    everything = units.everything()
    sub_models = SubModels.of(units, [everything, half, everything, half])
    found = sub_models.tested(model, samples)
    assert found[0] == found[2] == score(model, samples).metrics["accuracy"]
    assert found[1] == found[3] == score(sub_models.cut(model, 1), samples).metrics["accuracy"]
