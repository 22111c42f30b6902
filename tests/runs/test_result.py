"""Using what a finished run left behind."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import adaptcl
from adaptcl import data
from adaptcl.cli import main
from adaptcl.data import Samples
from adaptcl.data.description import SampleForm
from adaptcl.errors import AdaptCLError, AdaptCLWarning, DataError
from adaptcl.runs.delivered import Delivered
from adaptcl.storage import save

HALF = {
    "pruned_rates": [[0.5, 0.0]],
    "first_pruning": 2,
    "pruning": "index",
    "adaptcl": {"max_importance_lost": 1.0},
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


def points(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    return torch.randn(count, 6), torch.arange(count) % 3


def trained(folder: Path | None, **settings: Any) -> adaptcl.Result:
    torch.manual_seed(0)
    fast: dict[str, Any] = {
        "workers": 2,
        "rounds": 3,
        "bandwidth_max": 0.01,
        "figures": "none",
        **HALF,
        **settings,
    }
    return adaptcl.run(net(), points(60), points(30), out=folder, **fast)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line on images."""
    folder = tmp_path_factory.mktemp("delivery") / "run"
    words = (
        "run --model small --data digits --samples 400 --workers 2 --rounds 3 --strategy adaptcl"
    )
    pruned = "--pruned-rates 0.5,0 --first-pruning 2 --max-importance-lost 1"
    assert main([*words.split(), *pruned.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from Python; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trained(folder)
    return folder


@pytest.mark.slow
def test_a_model_by_name_is_made_anew_and_takes_images_as_they_are(digits: Path) -> None:
    loaded = adaptcl.load(digits)
    test = data.load("digits", None).test
    assert test.inputs.dtype == torch.uint8
    with torch.no_grad():
        right = (loaded(test.inputs).argmax(1) == test.labels).float().mean().item()
        prepared, _ = test.batch(torch.arange(len(test)))
        torch.testing.assert_close(loaded(test.inputs), loaded.model(prepared))
        torch.testing.assert_close(loaded(prepared), loaded.model(prepared))
    assert right == pytest.approx(json.loads((digits / "summary.json").read_text())["accuracy"])
    assert not loaded.training
    assert loaded.inputs.shape == (1, 8, 8)
    assert loaded.inputs.classes == tuple("0123456789")


def test_a_workers_sub_model_is_smaller_and_as_large_as_the_summary_says(digits: Path) -> None:
    summary = json.loads((digits / "summary.json").read_text())
    sizes = [
        sum(p.numel() for p in adaptcl.load(digits, worker=worker).parameters())
        for worker in (0, 1)
    ]
    whole = sum(p.numel() for p in adaptcl.load(digits).parameters())
    assert [size / whole for size in sizes] == pytest.approx(summary["retention"])
    assert sizes[0] < 0.7 * whole
    assert sizes[1] == whole
    assert adaptcl.load(digits, worker=0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_sub_model_has_the_values_of_the_whole_one(finished: Path) -> None:
    result = trained(None)
    small, whole = result.sub_model(0), result.model
    kept = result.sub_models.distinct[result.sub_models.of_worker[0]]
    assert 0 < int(kept.sum()) < 32
    weight = small.state_dict()["0.weight"]
    assert torch.equal(weight, whole.state_dict()["0.weight"][kept])
    assert torch.equal(small.state_dict()["3.weight"], whole.state_dict()["3.weight"][:, kept])
    again = adaptcl.load(finished, model=net(), worker=0)
    assert torch.equal(again.model.state_dict()["0.weight"], weight)
    inputs, _ = points(9)
    torch.testing.assert_close(again(inputs), small(inputs))
    torch.testing.assert_close(adaptcl.load(finished, model=net())(inputs), whole(inputs))


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> adaptcl.Result:
    """A run of HeteroFL, whose statistics are measured."""
    torch.manual_seed(0)
    return adaptcl.run(
        net(),
        points(60),
        points(30),
        out=tmp_path_factory.mktemp("nested") / "run",
        strategy="heterofl",
        worker_widths=(0.25, 1.0),
        workers=2,
        rounds=2,
        bandwidth_max=0.01,
        figures="none",
    )


def test_a_sub_model_has_statistics_that_were_measured_on_it(nested: adaptcl.Result) -> None:
    small = nested.sub_model(0)
    inputs = small.get_submodule("0")(points(60)[0])
    measured = small.state_dict()["1.running_mean"]
    assert measured == pytest.approx(inputs.detach().mean(0), abs=1e-5)
    assert nested.folder is not None
    loaded = adaptcl.load(nested.folder, model=net(), worker=0).model
    for name, tensor in small.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    tested = nested.sub_model_accuracies(points(30))
    labels = points(30)[1]
    with torch.no_grad():
        right = (loaded(points(30)[0]).argmax(1) == labels).double().mean()
    assert tested[0] == pytest.approx(float(right))
    assert tested[1] == nested.summary.accuracy


def test_of_a_sub_model_without_statistics_of_its_own_a_warning_says_so(
    nested: adaptcl.Result,
) -> None:
    older = replace(nested, sub_models=replace(nested.sub_models, statistics=()))
    with pytest.warns(AdaptCLWarning, match="statistics were not measured on this part of it"):
        older.sub_model(0)
    older.sub_model(1)  # the whole model
    assert nested.folder is not None
    file = nested.folder / "sub-models.safetensors"
    before = file.read_bytes()
    save(file, older.sub_models.to_tree())
    with pytest.warns(AdaptCLWarning, match="some training samples"):
        adaptcl.load(nested.folder, model=net(), worker=0)
    file.write_bytes(before)


def test_a_run_that_is_only_looked_at_again_has_its_sub_models(finished: Path) -> None:
    first = trained(None)
    again = trained(finished, resume=True)
    assert again.sub_models.of_worker == first.sub_models.of_worker
    assert str(again.sub_model(0)) == str(first.sub_model(0)) != str(again.sub_model(1))


def test_the_model_given_is_not_changed(finished: Path) -> None:
    mine = net()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    adaptcl.load(finished, model=mine, worker=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())


def test_a_folder_of_runs_is_not_loaded_but_its_runs_are_named(finished: Path) -> None:
    with pytest.raises(AdaptCLError, match="there are runs below it: ") as refused:
        adaptcl.load(finished.parent)
    assert str(finished) in str(refused.value)


def test_what_cannot_be_loaded_is_told_in_a_sentence(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text('model = "small"\nstrategy = "fedavg"\n')
    for words, sentence in [
        ((finished, None, None), r"was trained with a custom model, .* give it"),
        ((finished, nn.Linear(6, 3), None), "holds another model than this"),
        ((finished, net(), 2), "There is no worker 2: they are numbered 0 to 1"),
        ((tmp_path / "nowhere", None, None), "is not a run folder"),
        ((tmp_path / "begun", None, None), "has no checkpoint yet; `adaptcl resume"),
        ((tmp_path / "begun", None, 1), "has no checkpoint yet; `adaptcl resume"),
    ]:
        folder, model, worker = words
        with pytest.raises(AdaptCLError, match=sentence):
            adaptcl.load(folder, model=model, worker=worker)


def test_what_a_folder_names_is_not_imported(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run" / "config.toml").write_text(
        'model = "harmful:build"\nseed = 1\nstrategy = "fedavg"\n'
    )
    with pytest.raises(AdaptCLError, match=r"a custom model, 'harmful:build'; give it"):
        adaptcl.load(tmp_path / "run")
    assert adaptcl.load(tmp_path / "run", model=net()).training is False


MEAN, STD = (0.3, 0.5), (0.4, 0.2)
IMAGES = torch.randint(0, 256, (5, 2, 6, 6), generator=torch.Generator().manual_seed(1)).byte()
NORMALISED = Samples(IMAGES, torch.zeros(5, dtype=torch.int64), MEAN, STD).batch(torch.arange(5))[0]


def image_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def delivered(*, normalised: bool = True, kind: str = "uint8") -> Delivered:
    mean, std = (MEAN, STD) if normalised else (None, None)
    return Delivered(image_net(), SampleForm((2, 6, 6), kind, mean, std, ())).eval()


def test_images_are_prepared_exactly_as_in_training() -> None:
    model = delivered()
    assert torch.equal(model(IMAGES), model.model(NORMALISED))
    assert torch.equal(model(NORMALISED), model.model(NORMALISED))


def test_images_without_normalisation_are_only_scaled() -> None:
    model = delivered(normalised=False)
    torch.testing.assert_close(model(IMAGES), model(IMAGES / 255))


def test_what_it_adds_to_the_model_is_not_among_its_tensors() -> None:
    assert list(delivered().state_dict()) == [f"model.{name}" for name in image_net().state_dict()]


def test_images_follow_the_model_to_another_type() -> None:
    model = delivered().double()
    assert model(IMAGES).dtype == torch.float64


def test_floats_between_0_and_1_are_warned_of_where_training_normalised() -> None:
    with pytest.warns(AdaptCLWarning) as caught:
        delivered()(IMAGES / 255)
    assert [str(each.message) for each in caught] == [
        "These floats all lie between 0 and 1, as images do before they are normalised, but the "
        "model was trained on normalised ones, from -2.5 to 2.5; give it uint8 images, or subtract "
        "(0.3, 0.5) and divide by (0.4, 0.2)."
    ]


@pytest.mark.parametrize("normalised", [True, False])
def test_floats_between_0_and_255_are_warned_of(normalised: bool) -> None:
    with pytest.warns(AdaptCLWarning, match=r"lie between \d and 25\d, .*; give it uint8 images\."):
        delivered(normalised=normalised)(IMAGES.float())


@given(st.integers(0, 4), st.integers(1, 5))
def test_floats_as_training_had_them_are_not_warned_of(first: int, count: int) -> None:
    delivered()(NORMALISED[first : first + count])
    delivered(normalised=False)(IMAGES[first : first + count] / 255)


def test_nor_are_inputs_that_somebody_made_up_or_models_that_take_no_images() -> None:
    delivered()(torch.zeros(2, 2, 6, 6))
    delivered(normalised=False, kind="float32")(torch.rand(2, 2, 6, 6))


def test_one_look_is_enough() -> None:
    model = delivered()
    with pytest.warns(AdaptCLWarning):
        model(IMAGES / 255)
    model(IMAGES / 255)


@pytest.mark.parametrize("shape", [(2, 6, 6), (4, 3, 6, 6), (4, 6, 6, 2)])
def test_uint8_inputs_that_are_no_such_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"taken for images \[N, 2, H, W\], but these have the sha"):
        delivered()(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("given", [IMAGES, NORMALISED], ids=["images", "floats"])
def test_it_can_be_exported_for_any_number_of_samples(given: Tensor) -> None:
    model = delivered()
    exported = torch.export.export(
        model, (given,), dynamic_shapes={"inputs": ({0: torch.export.Dim("samples", min=1)},)}
    ).module()
    for count in (2, 5):
        torch.testing.assert_close(exported(given[:count]), model(given[:count]))


@pytest.mark.parametrize("given", [IMAGES, NORMALISED], ids=["images", "floats"])
def test_tracing_it_warns_of_nothing_it_does(given: Tensor) -> None:
    model = delivered()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, given)  # type: ignore[no-untyped-call]
    assert {each.category for each in caught} <= {DeprecationWarning}  # of tracing itself
    torch.testing.assert_close(traced(given[:2]), model(given[:2]))


def test_a_run_gives_the_same_model_as_its_folder(tmp_path: Path) -> None:
    data = IMAGES, torch.arange(5) % 3
    result = adaptcl.run(
        image_net(),
        data,
        data,
        out=tmp_path / "run",
        strategy="fedavg",
        workers=2,
        rounds=1,
        figures="none",
    )
    loaded = adaptcl.load(tmp_path / "run", model=image_net())
    assert torch.equal(result.delivered(IMAGES), loaded(IMAGES))
    assert torch.equal(result.delivered(IMAGES), result.model(IMAGES.float() * (1 / 255)))
    assert result.delivered.model is result.model
