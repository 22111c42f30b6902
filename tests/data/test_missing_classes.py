"""Classes that nothing can be learnt of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import adaptcl
from adaptcl.cli.main import main
from adaptcl.data import Samples
from adaptcl.data.partition import missing_classes


def labelled(*labels: int) -> Samples:
    return Samples(torch.zeros(len(labels), 2), torch.tensor(labels))


def test_a_label_that_only_the_test_part_has_is_named() -> None:
    parts = [labelled(0, 1), labelled(2, 3)]
    assert missing_classes(parts, labelled(0, 1, 2, 17)) == (
        "14 of 18 classes have no training sample (4, 5, 6, 7, 8, …), so nothing can be learnt of "
        "them, yet 1 test sample is labelled 17; are the labels right?"
    )


def test_a_class_between_others_that_nobody_has_is_named() -> None:
    assert missing_classes([labelled(0, 5)], labelled(0, 5)) == (
        "4 of 6 classes have no training sample (1, 2, 3, 4), so nothing can be learnt of them; "
        "are the labels right?"
    )


def test_classes_are_called_by_their_names() -> None:
    names = ("cat", "dog", "owl")
    assert missing_classes([labelled(0, 1)], labelled(0, 2, 2), names) == (
        "1 of 3 classes has no training sample (owl), so nothing can be learnt of it, yet 2 test "
        "samples are labelled owl; are the labels right?"
    )


def test_a_named_class_that_no_sample_has_is_missing_too() -> None:
    sentence = missing_classes([labelled(0, 1)], labelled(0, 1), ("cat", "dog", "owl"))
    assert sentence is not None
    assert "(owl)" in sentence


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1), min_size=1),
    st.lists(st.integers(0, 6), min_size=1),
)
def test_nothing_is_said_if_and_only_if_every_class_is_trained_on(
    parts: list[list[int]], test: list[int]
) -> None:
    trained = {label for part in parts for label in part}
    complete = trained | set(test) == trained == set(range(1 + max(trained)))
    sentence = missing_classes([labelled(*part) for part in parts], labelled(*test))
    assert (sentence is None) == complete


@pytest.mark.parametrize("listed", [False, True], ids=["dealt", "one for each worker"])
def test_a_run_from_python_warns_of_them(listed: bool) -> None:
    train, test = labelled(*[0, 2] * 4), labelled(0, 2)
    with pytest.warns(adaptcl.AdaptCLWarning, match="1 of 3 classes has no training sample"):
        adaptcl.run(
            nn.Linear(2, 3),
            [train, train] if listed else train,
            test,
            strategy="fedavg",
            workers=2,
            rounds=1,
        )


def test_a_run_of_the_command_line_says_so_whatever_its_data_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seventeen.py").write_text(
        "import torch\n"
        "def load(data_dir):\n"
        "    inputs, labels = torch.rand(8, 1, 8, 8), torch.arange(8) % 4\n"
        "    return (inputs, labels), (inputs, labels.clone().put_(torch.tensor(0), "
        "torch.tensor(17)))\n"
    )
    monkeypatch.chdir(tmp_path)
    words = "run --data seventeen:load --model small --strategy fedavg --workers 2 --rounds 1"
    assert main([*words.split(), "--out", "run"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "14 of 18 classes have no training sample" in said
    assert "1 test sample is labelled 17" in said
