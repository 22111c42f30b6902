"""What samples look like: on disk, in an invitation, and for a server without data."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.config.job import JobSettings
from adaptcl.data.description import (
    LABEL,
    Form,
    OddError,
    SampleForm,
    made_up,
    read_description,
    read_inputs,
)
from adaptcl.data.samples import SEVERAL
from adaptcl.errors import AdaptCLError, DataError, RunFolderError
from adaptcl.runs.workload import load_workload, server_workload
from adaptcl.settings import build

IMAGES = SampleForm((3, 20, 30), "uint8", (0.1, 0.2, 0.3), (1.0, 2.0, 0.5), ("cat", "dog"))
PAIR = {"left": Form((3,), "float32"), "right": Form((5,), "int64")}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def as_sent(inputs: SampleForm) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(json.dumps(inputs.to_json()))
    return sent


@pytest.mark.parametrize(
    "inputs",
    [
        IMAGES,
        SampleForm((1, 8, 8), "uint8", None, None, ("0",)),
        SampleForm((12,), "int64", None, None, ("yes", "no")),
        SampleForm((), "float32", None, None, ("yes", "no")),
        SampleForm((4,), "float32", (0.0,) * 4, (1.0,) * 4, (), None, Form((), "float32"), 1),
        SampleForm((), SEVERAL, None, None, (), PAIR, (LABEL, Form((2, 2), "bool")), 7),
    ],
)
def test_inputs_arrive_as_they_are(inputs: SampleForm) -> None:
    assert read_inputs(as_sent(inputs)) == inputs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shape", [3, 20]),
        ("shape", [3, 20, 0]),
        ("shape", [3, 20, -30]),
        ("shape", [3, 20, 30.0]),
        ("shape", [3, 20, True]),
        ("shape", [1] * 9),
        ("shape", [3, 2**20, 2**20]),
        ("shape", "RGB"),
        ("shape", None),
        ("kind", "object"),
        ("kind", ["uint8"]),
        ("mean", [0.1, 0.2]),
        ("mean", [0.1, 0.2, float("nan")]),
        ("mean", [0.1, 0.2, "0.3"]),
        ("mean", [0.1, 0.2, True]),
        ("std", None),
        ("std", [1.0, 2.0, 0.0]),
        ("std", [1.0, 2.0, -1.0]),
        ("std", [1.0, 2.0, float("inf")]),
        ("std", [1.0, 2.0, 10**400]),
        ("parts", {"left": {"shape": [3], "kind": "float32"}}),
        ("targets", {"shape": [2.5], "kind": "float32"}),
        ("targets", {"shape": [2]}),
        ("targets", []),
        ("targets", {"y": [2]}),
        ("outputs", -1),
        ("outputs", True),
        ("outputs", 2**40),
        ("classes", [1, 2]),
        ("classes", "cat"),
        ("classes", ["x" * 1001]),
        ("classes", ["x"] * (2**16 + 1)),
    ],
    ids=lambda value: f"{value!r:.25}",
)
def test_inputs_that_cannot_be_are_refused_by_what_is_odd(name: str, value: object) -> None:
    with pytest.raises(OddError) as odd:
        read_inputs({**as_sent(IMAGES), name: value})
    assert odd.value.name == name


def test_tokens_are_not_normalised() -> None:
    with pytest.raises(OddError, match="mean is"):
        read_inputs(as_sent(SampleForm((1,), "int64", (0.1,), (1.0,), ("yes", "no"))))


FIELDS = (
    *("shape", "kind", "mean", "std", "classes", "parts", "targets", "outputs", "columns", "more"),
)


@given(st.sampled_from(FIELDS), ANYTHING)
def test_inputs_made_by_hand_are_read_or_refused(name: str, value: object) -> None:
    with contextlib.suppress(OddError):
        assert isinstance(read_inputs({**as_sent(IMAGES), name: value}), SampleForm)


@given(ANYTHING)
def test_what_is_no_description_at_all_is_refused(value: object) -> None:
    with pytest.raises(OddError, match="inputs is"):
        read_inputs(value)
    with pytest.raises(RunFolderError, match=r"inputs\.json does not describe inputs: inputs is"):
        SampleForm.from_json(value)


def written(folder: Path, values: object) -> Path:
    path = folder / "inputs.json"
    path.write_text(json.dumps(values))
    return path


def test_the_description_that_a_run_leaves_can_be_used_again(tmp_path: Path) -> None:
    several = SampleForm((), SEVERAL, None, None, (), PAIR, Form((), "float32"), 1)
    table = SampleForm((2,), "float32", None, None, ("a",), columns={"": ("age", "bmi")})
    for known in (IMAGES, several, table):
        assert read_description(written(tmp_path, known.to_json())) == known
        assert SampleForm.of(made_up(known), known.classes, known.outputs) == known


def test_what_is_left_out_is_usual(tmp_path: Path) -> None:
    known = read_description(written(tmp_path, {"shape": [1, 8, 8], "classes": 3}))
    assert known == SampleForm((1, 8, 8), "uint8", None, None, ("0", "1", "2"))


@pytest.mark.parametrize("kind", ["uint8", "float32", "int64"])
def test_samples_of_any_kind_can_be_made_up(kind: str) -> None:
    inputs, labels = made_up(SampleForm((1, 4, 4), kind, None, None, ("a",))).batch(torch.arange(2))
    assert inputs.shape == (2, 1, 4, 4)
    assert labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "must hold a JSON object with a `shape`"),
        ({"classes": 2}, "must hold a JSON object with a `shape`"),
        ({"shape": [1, 8, 8]}, "it must have `classes`, or `outputs` where there are none"),
        ({"shape": [1, 8, 8], "classes": 0}, "classes is 0, which cannot be"),
        ({"shape": [1, 0], "classes": 2}, r"shape is \[1, 0\], which cannot be"),
        ({"shape": [8], "classes": 2, "kind": "str"}, "kind is 'str', which cannot be"),
        ({"shape": [8], "classes": 2, "size": 3}, "inputs is .*'size'.*, which cannot be"),
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
