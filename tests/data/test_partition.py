"""Splitting data among workers, and classes that no worker has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

import adaptcl
from adaptcl.cli import main
from adaptcl.data import Samples
from adaptcl.data.partition import by_label_share, dirichlet, iid, missing_classes
from adaptcl.errors import SettingError


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def labels_and_workers(draw: st.DrawFn) -> tuple[Tensor, int]:
    labels = draw(st.lists(st.integers(0, 12), min_size=1, max_size=120))
    return torch.tensor(labels), draw(st.integers(1, min(len(labels), 20)))


shares = st.floats(0, 1)
concentrations = st.floats(1e-6, 1e6)
seeds = st.integers(0, 2**31)


def assert_every_sample_is_dealt_once(parts: list[Tensor], labels: Tensor, workers: int) -> None:
    assert len(parts) == workers
    assert all(part.dtype == torch.int64 for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))


def assert_sizes_differ_by_one_at_most(parts: list[Tensor]) -> None:
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(labels_and_workers(), seeds)
def test_iid_deals_every_sample_once_and_evenly(case: tuple[Tensor, int], seed: int) -> None:
    parts = iid(*case, seeded(seed))
    assert_every_sample_is_dealt_once(parts, *case)
    assert_sizes_differ_by_one_at_most(parts)


@given(labels_and_workers(), shares, seeds)
def test_by_label_share_deals_every_sample_once_and_evenly(
    case: tuple[Tensor, int], share: float, seed: int
) -> None:
    parts = by_label_share(*case, share, seeded(seed))
    assert_every_sample_is_dealt_once(parts, *case)
    assert_sizes_differ_by_one_at_most(parts)


@given(labels_and_workers(), seeds)
def test_a_share_of_one_gives_labels_in_worker_order(case: tuple[Tensor, int], seed: int) -> None:
    labels, workers = case
    dealt = labels[torch.cat(by_label_share(labels, workers, 1.0, seeded(seed)))]
    assert dealt.tolist() == sorted(labels.tolist())


def test_the_paper_s_80_gives_each_of_ten_workers_mostly_its_own_class() -> None:
    labels = torch.arange(10).repeat_interleave(1000)
    parts = by_label_share(labels, 10, 0.8, seeded())
    for worker, part in enumerate(parts):
        counts = torch.bincount(labels[part], minlength=10)
        assert len(part) == 1000
        assert counts.argmax() == worker
        # 800 of its own class, a few fewer where classes meet, and a tenth of the 200 others.
        assert 760 <= counts[worker] <= 860
        assert (counts > 0).all()


def test_a_share_of_zero_has_no_preference_for_any_label() -> None:
    labels = torch.arange(10).repeat_interleave(1000)
    for part in by_label_share(labels, 10, 0.0, seeded()):
        assert torch.bincount(labels[part], minlength=10).min() > 50


@given(labels_and_workers(), concentrations, seeds)
def test_dirichlet_deals_every_sample_once_and_to_everybody_two_if_there_are_enough(
    case: tuple[Tensor, int], concentration: float, seed: int
) -> None:
    parts = dirichlet(*case, concentration, seeded(seed))
    assert_every_sample_is_dealt_once(parts, *case)
    labels, workers = case
    assert min(len(part) for part in parts) >= min(2, len(labels) // workers)


def test_a_dirichlet_split_stays_uneven_where_many_had_to_be_given_samples() -> None:
    labels = torch.arange(60) % 10
    sizes = sorted(len(part) for part in dirichlet(labels, 20, 0.05, seeded()))
    assert sizes[0] == sizes[10] == 2
    assert sizes[-1] > 4


def test_a_small_concentration_gives_each_worker_fewer_classes_than_a_large_one() -> None:
    labels = torch.arange(10).repeat(500)

    def classes_a_worker(concentration: float) -> float:
        parts = dirichlet(labels, 10, concentration, seeded())
        return sum(len(torch.unique(labels[part])) for part in parts) / 10

    assert classes_a_worker(0.05) < 5
    assert classes_a_worker(1000) == 10


DEALS: tuple[Callable[[Tensor, int, Generator], list[Tensor]], ...] = (
    iid,
    lambda labels, workers, g: by_label_share(labels, workers, 0.5, g),
    lambda labels, workers, g: dirichlet(labels, workers, 0.5, g),
)


def test_a_split_depends_on_the_generator_alone() -> None:
    labels = torch.arange(200) % 7
    for deal in DEALS:
        first, again, other = (
            [part.tolist() for part in deal(labels, 5, seeded(seed))] for seed in (3, 3, 4)
        )
        assert again == first != other


def test_more_workers_than_samples_are_refused() -> None:
    for deal in DEALS:
        with pytest.raises(SettingError, match="at least one"):
            deal(torch.arange(5), 6, seeded())


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


def test_a_run_from_python_warns_of_them() -> None:
    train, test = labelled(*[0, 2] * 4), labelled(0, 2)
    with pytest.warns(adaptcl.AdaptCLWarning, match="1 of 3 classes has no training sample"):
        adaptcl.run(nn.Linear(2, 3), train, test, strategy="fedavg", workers=2, rounds=1)


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
