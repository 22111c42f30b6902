from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.models import build
from adaptcl.runs.sub_models import SubModels
from adaptcl.training.evaluation import Judge, Score, accuracy, sub_model_accuracies
from adaptcl.units import trace


class Echo(nn.Module):
    """Its scores are its inputs; while training it would give them the wrong way round."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training else x


@pytest.mark.parametrize("batch_size", [1, 2, 5, 512])
def test_accuracy_is_the_share_of_labels_with_the_highest_score(batch_size: int) -> None:
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 2, 0])]
    samples = Samples(scores, torch.tensor([0, 1, 2, 0, 1]))
    assert accuracy(Echo().train(), samples, batch_size) == 3 / 5


def test_batch_norm_statistics_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    accuracy(model, Samples(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_judge_finds_what_a_plain_test_finds() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(200, 3, 32, 32, generator=draw)
    samples = Samples(images, torch.randint(10, (200,), generator=draw))
    for name in ("small", "resnet50"):  # with channels last, and without
        model = build(name, (3, 32, 32), 10, seed=1)
        judge = Judge(model, samples)
        for seed in (2, 3):
            state = build(name, (3, 32, 32), 10, seed=seed).state_dict()
            model.load_state_dict(state)
            # A tie may fall either way.
            assert abs(judge.accuracy(state) - accuracy(model, samples)) <= 1 / 200


def test_a_judge_changes_neither_the_model_nor_the_state() -> None:
    model = build("small", (1, 8, 8), 3, seed=1).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Judge(model, Samples(torch.rand(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))).accuracy(state)
    assert model.training
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all(t.is_contiguous() for t in model.state_dict().values())


# Class by class --------------------------------------------------------------------------------


def test_a_test_counts_the_samples_of_each_class_that_were_recognised() -> None:
    scores = torch.eye(4)[torch.tensor([0, 0, 1, 3, 1, 3])]
    labels = torch.tensor([0, 0, 0, 3, 3, 1])
    tested = Judge(Echo(), Samples(scores, labels)).test({})
    assert (tested.right, tested.samples) == ((2, 0, 0, 1), (3, 1, 0, 2))
    assert tested.accuracy == 3 / 6
    assert tested.by_class == (2 / 3, 0.0, None, 0.5)


def test_a_test_over_several_batches_is_that_of_one() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (1300,), generator=draw)
    scores = torch.rand(1300, 3, generator=draw)
    judge = Judge(Echo(), Samples(scores, labels))
    right = scores.argmax(1) == labels
    expected = tuple(int((right & (labels == each)).sum()) for each in range(3))
    assert judge.test({}).right == expected
    assert judge.test({}).accuracy == judge.accuracy({})


counts = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(samples=counts, data=st.data())
def test_on_the_classes_of_the_test_data_the_accuracy_is_that_of_the_test(
    samples: list[int], data: st.DataObject
) -> None:
    right = [data.draw(st.integers(0, most)) for most in samples]
    tested = Score(tuple(right), tuple(samples))
    assert tested.on(samples) == pytest.approx(tested.accuracy)
    for label, share in enumerate(tested.by_class):
        only = [0] * label + [7]
        assert tested.on(only) == pytest.approx(share)


def test_classes_that_were_not_tested_are_left_out() -> None:
    tested = Score((1, 0, 3), (2, 0, 4))
    assert tested.on([1, 99, 3]) == pytest.approx(0.25 * 0.5 + 0.75 * 0.75)
    assert tested.on([1, 0, 3, 50]) == tested.on([1, 0, 3])
    assert tested.on([4]) == 0.5
    assert tested.on([0, 5]) is None
    assert tested.on([]) is None


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
    found = sub_model_accuracies(model, sub_models, samples)
    assert found[0] == found[2] == accuracy(model, samples)
    assert found[1] == found[3] == accuracy(sub_models.cut(model, 1), samples)
