"""Accuracy of a model, class by class, and batch-norm statistics that are measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import SettingError
from adaptcl.models import build
from adaptcl.training.cpu.layout import cpu_layout
from adaptcl.training.objectives.evaluation import FreshStatistics, Judge, Score, score
from adaptcl.training.objectives.objective import CLASSIFICATION


class Echo(nn.Module):
    """Its scores are its inputs; while training it would give them the wrong way round."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training else x


def test_accuracy_is_the_share_of_labels_with_the_highest_score() -> None:
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 2, 0])]
    samples = Samples(scores, torch.tensor([0, 1, 2, 0, 1]))
    for size in (1, 2, 5, 512):
        objective = replace(CLASSIFICATION, test_batch=size)
        assert score(Echo().train(), samples, objective).metrics == {"accuracy": 3 / 5}


def test_batch_norm_statistics_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    score(model, Samples(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def strided(stride: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * (4 // stride) ** 2, 10),
    )  # fmt: skip


def test_a_judge_finds_what_a_plain_test_finds() -> None:
    draw = torch.Generator().manual_seed(0)
    samples = Samples(
        torch.rand(200, 1, 8, 8, generator=draw), torch.randint(10, (200,), generator=draw)
    )
    for stride, layout in ((1, torch.channels_last), (2, torch.contiguous_format)):
        model = strided(stride, seed=1)
        assert cpu_layout(model, samples.inputs[:2]) is layout
        judge = Judge(model, samples)
        for seed in (2, 3):
            state = strided(stride, seed).state_dict()
            model.load_state_dict(state)
            plain = score(model, samples).metrics["accuracy"]
            # A tie may fall either way.
            assert abs(judge.test(state).metrics["accuracy"] - plain) <= 1 / 200


def test_a_judge_changes_neither_the_model_nor_the_state() -> None:
    model = build("small", (1, 8, 8), 3, seed=1).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Judge(model, Samples(torch.rand(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64))).test(state)
    assert model.training
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all(t.is_contiguous() for t in model.state_dict().values())


# Class by class.


def test_a_test_counts_the_samples_of_each_class_that_were_recognised() -> None:
    scores = torch.eye(4)[torch.tensor([0, 0, 1, 3, 1, 3])]
    labels = torch.tensor([0, 0, 0, 3, 3, 1])
    tested = Judge(Echo(), Samples(scores, labels)).test({})
    assert (tested.right, tested.samples) == ((2, 0, 0, 1), (3, 1, 0, 2))
    assert tested.metrics["accuracy"] == 3 / 6
    assert tested.by_class == (2 / 3, 0.0, None, 0.5)


def test_a_test_over_several_batches_is_that_of_one() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (1300,), generator=draw)
    scores = torch.rand(1300, 3, generator=draw)
    judge = Judge(Echo(), Samples(scores, labels))
    right = scores.argmax(1) == labels
    expected = tuple(int((right & (labels == each)).sum()) for each in range(3))
    assert judge.test({}).right == expected
    assert judge.test({}).metrics["accuracy"] == sum(expected) / 1300


counts = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(samples=counts, data=st.data())
def test_on_the_classes_of_the_test_data_the_accuracy_is_that_of_the_test(
    samples: list[int], data: st.DataObject
) -> None:
    right = [data.draw(st.integers(0, most)) for most in samples]
    tested = Score(0.0, {}, "accuracy", tuple(right), tuple(samples))
    assert tested.on(samples) == pytest.approx(sum(right) / sum(samples))
    for label, share in enumerate(tested.by_class):
        only = [0] * label + [7]
        assert tested.on(only) == pytest.approx(share)


def test_classes_that_were_not_tested_are_left_out() -> None:
    tested = Score(0.0, {}, "accuracy", (1, 0, 3), (2, 0, 4))
    assert tested.on([1, 99, 3]) == pytest.approx(0.25 * 0.5 + 0.75 * 0.75)
    assert tested.on([1, 0, 3, 50]) == tested.on([1, 0, 3])
    assert tested.on([4]) == 0.5
    assert tested.on([0, 5]) is None
    assert tested.on([]) is None


# Fresh statistics.

NORM = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2), nn.BatchNorm1d(2))


def some_samples(begin: float, count: int) -> Samples:
    """Samples around `begin`, each feature of another spread."""
    draw = torch.Generator().manual_seed(int(begin))
    inputs = begin + torch.randn(count, 3, generator=draw) * torch.tensor([0.1, 1.0, 3.0])
    return Samples(inputs, torch.zeros(count, dtype=torch.int64))


def test_statistics_are_those_of_the_samples_whatever_was_there_before() -> None:
    workers = [some_samples(0, 400), some_samples(5, 400)]
    state = {**NORM.state_dict(), "0.running_mean": torch.full((3,), 77.0)}
    found = FreshStatistics(NORM, workers, 1000).of(state)
    inputs = torch.cat([each.inputs for each in workers])
    torch.testing.assert_close(found["0.running_mean"], inputs.mean(0))
    # The mean of the variances of mixed batches.
    torch.testing.assert_close(found["0.running_var"], inputs.var(0), rtol=0.05, atol=0)


def test_later_layers_are_measured_behind_the_fresh_statistics_of_earlier_ones() -> None:
    workers = [some_samples(3, 500)]
    measured = FreshStatistics(NORM, workers, 500).of(NORM.state_dict())
    model = nn.Sequential(*NORM).eval()
    model.load_state_dict(measured)
    with torch.no_grad():
        before_last = model[:3](workers[0].inputs)
    torch.testing.assert_close(measured["3.running_mean"], before_last.mean(0), atol=0.01, rtol=0)


def test_nothing_else_changes_and_nothing_is_drawn() -> None:
    state = {name: tensor.clone() for name, tensor in NORM.state_dict().items()}
    given = dict(state)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = FreshStatistics(NORM, [some_samples(1, 30)], 20).of(state)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name for name in state if found[name] is not given[name]} == {
        *("0.running_mean", "0.running_var", "3.running_mean", "3.running_var")
    }
    assert all(torch.equal(tensor, NORM.state_dict()[name]) for name, tensor in state.items())


def test_every_worker_gives_its_share_of_the_samples_and_all_are_mixed() -> None:
    workers = [some_samples(0, 100), some_samples(50, 300), some_samples(1000, 100)]
    samples = FreshStatistics(NORM, workers, 50)._samples
    groups = (samples.inputs.mean(1) / 40).round().clamp(max=2)
    assert [int((groups == group).sum()) for group in (0, 1, 2)] == [10, 30, 10]
    assert set(groups[:15].tolist()) == {0, 1, 2}


def test_a_model_without_such_layers_is_returned_unchanged() -> None:
    plain = nn.Sequential(
        nn.Linear(3, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False)
    )
    state = plain.state_dict()
    assert FreshStatistics(plain, [some_samples(0, 10)], 10).of(state) is state


def test_no_batch_has_a_single_sample() -> None:
    measured = FreshStatistics(NORM, [some_samples(0, 251)], 251).of(NORM.state_dict())
    assert all(torch.isfinite(tensor).all() for tensor in measured.values())
    with pytest.raises(SettingError, match="2 samples or more"):
        FreshStatistics(NORM, [some_samples(0, 10)], 1)
