"""What a worker checks before it reaches a server, and before it takes part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import models
from adaptcl.config.config import configure
from adaptcl.data import DataSet, Samples, load
from adaptcl.data.description import SampleForm
from adaptcl.engines.network.invitation import (
    Invitation,
    MismatchError,
    Question,
    fingerprint,
    for_the_server,
)
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.errors import DataError, SettingError
from adaptcl.runs.network.worker import OwnerChoices, describe, prepare, refuse_unusable
from adaptcl.runs.workload import load_workload
from adaptcl.units import trace
from adaptcl.units.as_json import units_to_json
from adaptcl.units.tracing.numbering import without_units

Command = Callable[..., tuple[int, str, str]]
OWNER = OwnerChoices("digits", "", "", "cpu", dealt=False)
DIGITS = SampleForm((1, 8, 8), "uint8", None, None, tuple("0123456789"))
CLASSES = ("apple", "bone", "cyst", "dot")


def images(root: Path, *, of: tuple[str, ...], size: int = 8, count: int = 8) -> str:
    """A folder in which a class is how bright its pictures are."""
    for name in of:
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixel = 20 + 70 * (ord(name[0]) - ord("a")) + number
            Image.new("L", (size, size), min(pixel, 255)).save(root / name / f"{number}.png")
    return f"folder:{root.parent}"


def server_images(root: Path) -> str:
    images(root / "train", of=CLASSES)
    return images(root / "test", of=CLASSES)


# Before there is a server ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "abacus"], "--device is 'abacus', but PyTorch has no such device on this"),
        (["--model", "nowhere:build"], "There is no module nowhere, where a model"),
        (["--model", "vgg"], "There is no model 'vgg'"),
        (["--memory", "file/below"], "--memory is 'file/below', but nothing can be written there"),
    ],
)
def test_what_its_owner_can_put_right_is_said_before_a_server_is_looked_for(
    command: Command, words: list[str], sentence: str
) -> None:
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    Path("file").touch()
    place = ("--server", "localhost:1", "--tls", "keys/worker-0", "--data", "digits")
    status, _, errors = command("worker", *place, *words, "--patience", "0.2")
    assert status == 2
    assert f"adaptcl: {sentence}" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="only Linux has such a folder")
def test_a_memory_that_is_there_but_cannot_be_written_to_is_refused() -> None:
    """Not even by root, as whom tests may run."""
    with pytest.raises(SettingError, match="nothing can be written there"):
        refuse_unusable(OWNER, Path("/proc/self"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--device is 'cuda', but PyTorch has no such device"):
        refuse_unusable(replace(OWNER, device="cuda"), tmp_path)


# What the server asks for ----------------------------------------------------------------------


def invitation(**others: object) -> Invitation:
    settings = {"model": "small", "workers": 1, "codec": "plain", "seed": 3}
    return Invitation("run", 0, "print", {**settings, **others}, DIGITS, {})


def test_a_model_with_another_name_is_not_built() -> None:
    owner = replace(OWNER, model="hosp:build")
    data = LocalData.named("digits")
    with pytest.raises(MismatchError, match=r"model 'hosp2:build'.*only 'hosp:build' is allowed"):
        prepare(owner, data, invitation(model="hosp2:build"))


def test_the_model_an_owner_allows_does_not_shut_out_those_of_adaptcl() -> None:
    owner = replace(OWNER, model="hosp:build")
    with pytest.raises(MismatchError, match="differs from the server's"):
        prepare(owner, LocalData.named("digits"), invitation())


def test_a_worker_for_another_objective_is_refused() -> None:
    """By its name, or by the metrics that its code has."""
    data = LocalData.named("digits")
    regression = replace(invitation(), objective="regression (by rmse, mae, r2)")
    with pytest.raises(
        MismatchError,
        match=r"The server trains for regression \(by rmse, mae, r2\), but the worker for "
        r"classification \(by accuracy\); start the worker with the same --objective",
    ):
        prepare(OWNER, data, regression)


def test_what_an_owner_does_not_allow_is_refused_before_any_data_are_told() -> None:
    """A server that knows nothing invites only when all workers have told: that may be hours."""
    asked = Question("classification (by accuracy)", ({}, {"model": "hosp:build", "workers": 2}))
    nothing_told: Any = None
    with pytest.raises(MismatchError, match=r"start the worker with --model 'hosp:build' if"):
        describe(OWNER, nothing_told, asked)
    other = replace(asked, objective="regression (by rmse, mae, r2)", settings=({},))
    with pytest.raises(MismatchError, match="start the worker with the same --objective"):
        describe(OWNER, nothing_told, other)
    data = LocalData.named("digits")
    assert describe(replace(OWNER, model="hosp:build"), data, asked) == data.statistics()


TOKENS = """
from torch import nn

def net(shape, outputs):
    return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, outputs))
"""


def test_labels_beyond_the_outputs_of_the_model_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_tokens.py").write_text(TOKENS)
    monkeypatch.syspath_prepend(tmp_path)
    tokens = torch.tensor([[0, 1, 2], [3, 9, 0]])
    samples = Samples(torch.zeros(2, 3, dtype=torch.int64), tokens)
    held = LocalData(DataSet("held", samples, samples, ()))
    wanted = replace(SampleForm.of(samples), outputs=4)
    asked = replace(
        invitation(model="own_tokens:net"),
        inputs=wanted,
        objective="language-modelling (by perplexity)",
    )
    owner = replace(OWNER, objective="language-modelling", model="own_tokens:net")
    with pytest.raises(DataError, match=r"scores for 4 classes, but worker 0 has a label 9"):
        prepare(owner, held, asked)


def test_a_worker_holds_back_what_the_server_asks_for_or_tests_on_its_test_part() -> None:
    data = load("digits")
    model = models.build("small", (1, 8, 8), 10, 3)
    wanted = replace(DIGITS, mean=data.train.mean, std=data.train.std)
    units = units_to_json(trace(model, torch.zeros(2, 1, 8, 8), models.MODELS["small"].fixed))
    mark = fingerprint(model, without_units(model))
    for part, holdout, trained, tested in (
        (False, 0.0, len(data.train), None),
        (True, 0.0, len(data.train), None),
        (False, 0.5, len(data.train) // 2, len(data.train) // 2),
        (True, 0.5, len(data.train), len(data.test)),
    ):
        invited = replace(invitation(holdout=holdout), inputs=wanted, fingerprint=mark, units=units)
        local = LocalData.named("digits", test_part=part)
        found, _ = prepare(replace(OWNER, test_part=part), local, invited)
        assert len(found.samples) == pytest.approx(trained, abs=1)
        assert (found.held_back and len(found.held_back)) == pytest.approx(tested, abs=1)


def test_a_picture_that_cannot_be_read_any_more_is_named_to_its_owner_only(tmp_path: Path) -> None:
    data = server_images(tmp_path / "server")
    own = images(tmp_path / "own" / "train", of=CLASSES)
    workload = load_workload(configure({"model": "small", "data": data, "workers": 2}).job)
    invited = replace(invitation(), inputs=SampleForm.of(workload.test, CLASSES))
    held = LocalData.named(own)
    (tmp_path / "own" / "train" / "bone" / "3.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bone/3\.png cannot be decoded") as refused:
        prepare(OWNER, held, invited)
    assert "png" not in for_the_server(refused.value)


def test_the_normalisation_a_run_folder_keeps_is_that_of_every_worker(tmp_path: Path) -> None:
    data = server_images(tmp_path / "server")
    server = load_workload(configure({"model": "small", "data": data, "workers": 2}).job).test
    own = images(tmp_path / "own" / "train", of=CLASSES[:1])
    wanted = SampleForm.of(server, CLASSES)
    assert LocalData.named(own).fitted(wanted).mean == server.mean
