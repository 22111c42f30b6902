from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adaptcl.config.job import JobSettings
from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.runs.workload import deal, is_list_by_worker, load_workload, workload_from_python
from adaptcl.settings import build


def job(**settings: Any) -> JobSettings:
    return build(JobSettings, {"model": "small", "data": "digits", "workers": 3, **settings})


def pair(count: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 5), torch.arange(count) % classes


def linear(classes: int = 3) -> nn.Module:
    return nn.Linear(5, classes)


# By name ---------------------------------------------------------------------------------------


def test_a_model_and_data_by_name() -> None:
    calls: list[tuple[int, int | None]] = []
    workload = load_workload(job(workers=4), lambda *call: calls.append(call))
    assert len(workload.worker_samples) == 4
    assert sum(map(len, workload.worker_samples)) + len(workload.test) == 1797
    assert workload.example().shape == (2, 1, 8, 8)
    assert workload.model(workload.example()).shape == (2, 10)


def test_the_seed_decides_the_model_and_who_gets_what() -> None:
    first, again, other = load_workload(job()), load_workload(job()), load_workload(job(seed=2))
    for one, two, equal in ((first, again, True), (first, other, False)):
        weights = [m.model.state_dict()["features.0.weight"] for m in (one, two)]
        assert torch.equal(*weights) is equal
        assert torch.equal(one.worker_samples[0].inputs, two.worker_samples[0].inputs) is equal


def test_a_models_own_fixed_layers_are_joined_by_the_settings() -> None:
    workload = load_workload(job(model="resnet50", fixed=("fc*",)))
    assert workload.fixed[-1] == "fc*"
    assert len(workload.fixed) > 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "big", "data_dir": "nowhere"}, "There is no model 'big'; choose one of "
         "resnet18, resnet50, small, vgg16, or give your own as package.module:build."),
        ({"workers": 10_000}, "1437 samples cannot be dealt to 10000 workers: each needs at least "
         "one."),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AdaptCLError) as refused:
        load_workload(job(**settings))
    assert str(refused.value) == sentence


def test_a_wrong_model_is_refused_before_the_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="There is no model"):
        load_workload(job(model="big", data="cifar10", data_dir=str(tmp_path)))


def test_data_without_a_test_part_are_enough_where_workers_hold_back_some(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=np.zeros((12, 8, 8), np.uint8), y_train=np.arange(12) % 3)
    workload = load_workload(job(data=str(path), holdout=0.25))
    assert workload.tested_by_workers
    counts = [len(each) for each in (*workload.worker_samples, *workload.held_back)]
    assert counts == [3, 3, 3, 1, 1, 1]


# Dealing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "by-label", "dirichlet"])
def test_every_sample_is_dealt_once_however_it_is_dealt(partition: str) -> None:
    inputs = torch.arange(300.0).view(300, 1)
    samples = Samples(inputs, torch.arange(300) % 10)
    parts = deal(samples, job(partition=partition))
    assert len(parts) == 3
    dealt = torch.cat([part.inputs for part in parts]).flatten()
    assert torch.equal(dealt.sort().values, inputs.flatten())


def test_the_label_share_is_in_per_cent() -> None:
    samples = Samples(torch.randn(3000, 1), torch.arange(3000) % 10)
    counts = {
        share: torch.stack(
            [
                torch.bincount(part.labels, minlength=10)
                for part in deal(samples, job(partition="by-label", label_share=share, workers=10))
            ]
        )
        for share in (0.0, 50.0, 100.0)
    }
    largest = {share: float((c.max(1).values / c.sum(1)).mean()) for share, c in counts.items()}
    assert largest[0.0] < 0.25
    assert largest[50.0] == pytest.approx(0.55, abs=0.1)
    assert largest[100.0] == 1.0
    with pytest.raises(SettingError, match=r"label_share is 0\.8, but it must be in per"):
        job(label_share=0.8)


def test_as_many_samples_are_dealt_as_the_settings_ask_for() -> None:
    samples = Samples(torch.arange(300.0).view(300, 1), torch.arange(300) % 10)

    def dealt(**settings: Any) -> list[float]:
        parts = deal(samples, job(samples=60, **settings))
        assert [len(part) for part in parts] == [20, 20, 20]
        return torch.cat([part.inputs for part in parts]).flatten().sort().values.tolist()

    assert len(set(dealt())) == 60
    assert dealt() == dealt(partition="by-label"), "the same ones however they are dealt"
    assert dealt() != dealt(seed=2)
    assert dealt() != list(range(60))
    everything = deal(samples, job(samples=300))
    for one, two in zip(everything, deal(samples, job()), strict=True):
        assert torch.equal(one.inputs, two.inputs)


def test_more_samples_than_there_are_cannot_be_asked_for() -> None:
    samples = Samples(torch.arange(300.0).view(300, 1), torch.arange(300) % 10)
    with pytest.raises(SettingError) as refused:
        deal(samples, job(samples=301))
    assert str(refused.value) == "samples is 301, but the data set has only 300 to train on."


def test_samples_are_not_drawn_from_data_that_is_dealt_already() -> None:
    parts = [pair(), pair(), pair()]
    with pytest.raises(SettingError, match="samples is 6, but train is a list with a data set"):
        workload_from_python(linear(), parts, pair(), job(samples=6))


# From Python -----------------------------------------------------------------------------------


def test_data_comes_as_a_pair_of_tensors_or_arrays() -> None:
    inputs, labels = pair()
    for train in ((inputs, labels), (inputs.numpy(), labels.numpy()), [inputs, labels]):
        workload = workload_from_python(linear(), train, (inputs, labels), job())
        assert [len(part) for part in workload.worker_samples] == [4, 4, 4]


def test_data_comes_as_a_torch_data_set_or_a_list_of_samples() -> None:
    inputs, labels = pair()
    listed = [(x, int(y)) for x, y in zip(inputs, labels, strict=True)]
    arrays = [(x.numpy(), np.int64(y)) for x, y in listed]
    for train in (TensorDataset(inputs, labels), listed, arrays):
        workload = workload_from_python(linear(), train, (inputs, labels), job())
        assert [len(part) for part in workload.worker_samples] == [4, 4, 4]


def test_a_list_of_data_sets_is_one_for_each_worker() -> None:
    own = [pair(4), TensorDataset(*pair(5)), pair(6)]
    workload = workload_from_python(linear(), own, pair(), job())
    assert [len(part) for part in workload.worker_samples] == [4, 5, 6]
    assert not is_list_by_worker(pair(), "train")
    assert is_list_by_worker([pair(1)], "train")
    with pytest.raises(SettingError) as refused:
        workload_from_python(linear(), own, pair(), job(workers=2))
    assert str(refused.value) == "workers is 2, but train is a list of 3."


@pytest.mark.parametrize(
    ("model", "train", "test", "sentence"),
    [
        ("vgg16", pair(), pair(), "The model is a str, but it must be an nn.Module."),
        (nn.Flatten, pair(), pair(), "The model is the class Flatten, but it must be an nn.Module; "
         "give an instance: Flatten() instead of Flatten."),
        (nn.Flatten(), pair(), pair(), "The model has no parameters that can be trained."),
        (linear().requires_grad_(False), pair(), pair(),
         "The model has no parameters that can be trained."),
        (linear(), [], pair(), "train is an empty list; it must hold a data set for each worker."),
        (linear(), pair()[0], pair(),
         "The training data cannot be used: There are inputs (a Tensor of float32 of the shape "
         "[12, 5]) but no labels; give a pair (inputs, labels)."),
        (linear(), [pair(), (pair()[0] / 0, pair()[1]), pair()], pair(),
         "Worker 1's data cannot be used: Inputs hold NaN or infinite values, in 12 of 12 samples, "
         "the first of them number 0; replace or drop those samples."),
        (linear(), [pair(), pair(), (pair()[0], pair()[1] - 5)], pair(),
         f"Worker 2's data cannot be used: Labels must count from 0, but there is a label "
         f"{int(pair()[1].min()) - 5}, that of sample {int(pair()[1].argmin())}."),
        (linear(), (pair()[0], pair(9)[1]), pair(),
         "The training data cannot be used: There are 12 inputs but 9 labels; both must be equal."),
        (linear(), pair(), (torch.randn(4, 6), torch.zeros(4, dtype=torch.long)),
         "Worker 0's inputs have shape (5,), those for testing (6,)."),
        (linear(), (pair()[0].long(), pair()[1]), pair(),
         "Worker 0's inputs are torch.int64, those for testing torch.float32."),
        (linear(), pair(2), pair(),
         "2 samples cannot be dealt to 3 workers: each needs at least one."),
    ],
)  # fmt: skip
def test_wrong_materials_are_refused_in_one_sentence(
    model: Any, train: Any, test: Any, sentence: str
) -> None:
    with pytest.raises(AdaptCLError) as refused:
        workload_from_python(model, train, test, job())
    assert str(refused.value) == sentence


def test_an_example_is_two_samples_even_where_there_is_one() -> None:
    workload = workload_from_python(linear(), pair(), pair(1), job())
    assert workload.example().shape == (2, 5)


# Frames ----------------------------------------------------------------------------------------


def test_frames_are_matched_by_the_names_of_their_columns() -> None:
    names = ["age", "bmi", "crp", "dose", "egfr"]
    inputs, labels = pair()
    frame = pandas.DataFrame(inputs.numpy(), columns=names)
    mixed = frame[["egfr", "age", "dose", "bmi", "crp"]]
    for one, other in ((frame, mixed), ({"x": frame}, {"x": mixed})):
        given = [(one, labels), (other, labels), (one, labels)]
        for test in ((other, labels), [(other, labels)] * 3):
            workload = workload_from_python(linear(), given, test, job())
            parts = [*workload.worker_samples, *workload.held_back, workload.test]
            assert all(torch.equal(each.inputs, inputs) for each in parts)

    renamed = frame.rename(columns={"bmi": "BMI"})
    differs = "of the columns that {} has, its frame lacks 'bmi' and has 'BMI' besides."
    with pytest.raises(DataError) as refused:
        workload_from_python(linear(), [(frame, labels), (renamed, labels)], None, job(workers=2))
    assert str(refused.value) == "Worker 1's data cannot be used: " + differs.format(
        "worker 0's data"
    )
    with pytest.raises(DataError) as refused:
        workload_from_python(linear(), (frame, labels), (renamed, labels), job())
    assert str(refused.value) == "The test data cannot be used: " + differs.format(
        "the training data"
    )
