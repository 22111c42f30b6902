"""What a server without data knows of the samples of its workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from adaptcl.config import JobSettings
from adaptcl.data.description import made_up, read_description
from adaptcl.data.samples import Inputs
from adaptcl.errors import AdaptCLError, DataError
from adaptcl.runs.workload import load_workload, server_workload
from adaptcl.settings import build


def written(folder: Path, values: object) -> Path:
    path = folder / "inputs.json"
    path.write_text(json.dumps(values))
    return path


def test_the_description_that_a_run_leaves_can_be_used_again(tmp_path: Path) -> None:
    known = Inputs((3, 8, 8), "uint8", (0.5, 0.4, 0.3), (0.1, 0.2, 0.3), ("cat", "dog"))
    assert read_description(written(tmp_path, known.to_json())) == known
    assert Inputs.of(made_up(known), known.classes) == known


def test_what_is_left_out_is_usual(tmp_path: Path) -> None:
    known = read_description(written(tmp_path, {"shape": [1, 8, 8], "classes": 3}))
    assert known == Inputs((1, 8, 8), "uint8", None, None, ("0", "1", "2"))


@pytest.mark.parametrize("kind", ["uint8", "float32", "int64"])
def test_samples_of_any_kind_can_be_made_up(kind: str) -> None:
    inputs, labels = made_up(Inputs((1, 4, 4), kind, None, None, ("a",))).batch(torch.arange(2))
    assert inputs.shape == (2, 1, 4, 4)
    assert labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "must hold a JSON object with `shape` and `classes`"),
        ({"shape": [1, 8, 8]}, "must hold a JSON object with `shape` and `classes`"),
        ({"shape": [1, 8, 8], "classes": 0}, "classes is 0"),
        ({"shape": [1, 8, 8], "classes": []}, "there must be a class"),
        ({"shape": [1, 0], "classes": 2}, "shape must be sizes above 0"),
        ({"shape": 8, "classes": 2}, "shape must be sizes above 0"),
        ({"shape": ["1"], "classes": 2}, "shape is"),
        ({"shape": [8], "classes": 2, "kind": "str"}, "kind is 'str', but it must be one of uint8"),
        ({"shape": [8], "classes": 2, "size": 3}, "does not describe inputs"),
    ],
)
def test_what_cannot_be_of_samples_is_refused(
    tmp_path: Path, values: object, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        read_description(written(tmp_path, values))


def test_only_a_server_whose_workers_test_can_do_without_samples(tmp_path: Path) -> None:
    file = written(tmp_path, {"shape": [1, 8, 8], "classes": 4})
    job = {"model": "small", "workers": 2, "data": f"inputs:{file}"}
    with pytest.raises(AdaptCLError, match="the server has no samples to test on; set holdout"):
        server_workload(build(JobSettings, job))
    with pytest.raises(AdaptCLError, match="which describes samples but has none"):
        load_workload(build(JobSettings, {**job, "holdout": 0.1}))
    workload = server_workload(build(JobSettings, {**job, "holdout": 0.1}))
    assert workload.tested_by_workers
    assert not workload.worker_samples
    assert workload.model(workload.example()).shape == (2, 4)
