"""Runs of models and data without a name, kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.report import Run, comparison_markdown, read_run
from adaptcl.report.comparison import groups

Pair = tuple[Tensor, Tensor]


def points(count: int, seed: int) -> Pair:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=draw), torch.arange(count) % 2


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


TRAIN, TEST = points(40, 0), points(20, 1)


def made(
    folder: Path,
    seed: int,
    model: nn.Module | None = None,
    train: Any = TRAIN,
    test: Pair = TEST,
    **settings: Any,
) -> Run:
    adaptcl.run(
        net(8) if model is None else model, train, test, seed=seed, out=folder, rounds=1,
        strategy="fedavg-s", **settings,
    )  # fmt: skip
    return read_run(folder)


def apart(*runs: Run) -> Sequence[int]:
    """How many runs each row over seeds has."""
    return [len(group.runs) for group in groups(runs, over_seeds=True)]


def test_seeds_deal_the_same_data_otherwise_and_are_one_row(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(seed), seed, workers=2, samples=30) for seed in (1, 2, 3)]
    assert apart(*runs) == [3]
    assert "The runs differ" not in comparison_markdown(runs, over_seeds=True)


def test_another_model_or_other_data_is_another_row_and_is_said(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", 1, workers=2)
    wider = made(tmp_path / "wider", 2, model=net(9), workers=2)
    other = made(tmp_path / "other", 3, train=points(40, 5), workers=2)
    tested = made(tmp_path / "tested", 4, test=points(20, 6), workers=2)
    assert apart(plain, wider, other, tested) == [1, 1, 1, 1]
    text = comparison_markdown([plain, wider], over_seeds=True)
    assert "The runs differ in model: compare times with care." in text
    assert "(model=Sequential " in text
    text = comparison_markdown([plain, other], over_seeds=True)
    assert "The runs differ in data: compare times with care." in text
    assert "(data=40 samples " in text


def test_data_that_is_dealt_otherwise_by_its_owner_is_other_data(tmp_path: Path) -> None:
    halves = [[(each[first::2]) for each in TRAIN] for first in (0, 1)]
    blocks = [[each[:20] for each in TRAIN], [each[20:] for each in TRAIN]]
    runs = [
        made(tmp_path / str(number), number, train=[tuple(part) for part in dealt])
        for number, dealt in enumerate((halves, halves, blocks))
    ]
    assert apart(*runs) == [2, 1]


def test_a_folder_without_or_with_damaged_marks_is_read_all_the_same(tmp_path: Path) -> None:
    run = made(tmp_path / "r", 1, workers=2)
    for text in ("{", "{}", '{"model": 3}'):
        (tmp_path / "r" / ".begun-with.json").write_text(text)
        assert read_run(tmp_path / "r").config["model"] == "(given from Python)"
    (tmp_path / "r" / ".begun-with.json").unlink()
    assert read_run(tmp_path / "r").summary == run.summary
