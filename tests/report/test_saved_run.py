from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import adaptcl
from adaptcl.errors import RunFolderError
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.comparisons.groups import group_runs
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.report.table import comparison_table

WriteRun = Callable[..., Path]
MakeRun = Callable[..., Run]
Pair = tuple[Tensor, Tensor]


def test_a_finished_run_is_read_back_whole(write_run: WriteRun) -> None:
    folder = write_run("one", strategy="adaptcl", rounds=3, adapts=True)
    run = read_run(folder)
    assert (run.folder, run.label, run.strategy) == (folder, "adaptcl", "adaptcl")
    assert run.config["rounds"] == 3
    assert [record.round for record in run.rounds] == [1, 2, 3]
    assert run.summary is not None
    assert run.summary.retention == tuple(w.retention for w in run.rounds[-1].workers)


def test_an_unfinished_run_has_no_summary(make_run: MakeRun) -> None:
    assert make_run("one", finished=False).summary is None


def test_a_run_that_has_not_finished_a_round_is_a_run(write_run: WriteRun) -> None:
    folder = write_run("one", finished=False)
    (folder / "rounds.jsonl").unlink()
    assert read_run(folder).rounds == ()


@settings(max_examples=25)
@given(cut=st.integers(min_value=1))
def test_a_last_line_cut_off_anywhere_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").write_text('strategy = "fedavg"\n')
    line = json.dumps(
        {"round": 1, "virtual_time_s": 2.5, "accuracy": None, "heterogeneity": 0.5, "workers": []}
    )
    (folder / "rounds.jsonl").write_text(f"{line}\n{line[: 1 + cut % (len(line) - 1)]}")
    assert len(read_run(folder).rounds) == 1


def test_a_complete_last_line_counts_even_without_its_line_end(write_run: WriteRun) -> None:
    folder = write_run("one", rounds=3)
    path = folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(read_run(folder).rounds) == 3


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"^There is no run folder .*nowhere\.$"):
        read_run(tmp_path / "nowhere")


def test_a_folder_without_settings_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder: it holds no config\.toml\.$"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.toml", b"strategy = \n", r"config\.toml is damaged: .+\.$"),
        ("config.toml", b"rounds = 3\n", r"config\.toml is damaged: it names no strategy\.$"),
        ("config.toml", b'strategy = "adaptcl"\nadaptcl = 3\n', r"config\.toml is damaged: .+\.$"),
        ("rounds.jsonl", b"{}\n{}\n", r"rounds\.jsonl is damaged: line 1 is not a round\.$"),
        ("rounds.jsonl", b"oops\n", r"rounds\.jsonl is damaged: line 1 is not JSON\.$"),
        ("summary.json", b"{", r"summary\.json is damaged: it is not JSON\.$"),
        ("summary.json", b"[]", r"summary\.json is damaged: it is not a summary\.$"),
        ("summary.json", b'{"retention": []}', r"is damaged: it is not a summary\.$"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(
    write_run: WriteRun, name: str, content: bytes, sentence: str
) -> None:
    folder = write_run("one")
    (folder / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=sentence):
        read_run(folder)


def test_runs_are_ordered_as_the_strategies_are_listed_and_else_left_alone(
    make_run: MakeRun,
) -> None:
    strategies = ("mine", "adaptcl", "fedavg", "adaptcl", "fedavg-s", "heterofl")
    runs = [make_run(str(place), strategy=name) for place, name in enumerate(strategies)]
    assert by_strategy(runs) == [runs[place] for place in (2, 4, 1, 3, 5, 0)]


def test_the_clock_of_a_run_across_a_network_is_a_real_one(write_run: Callable[..., Path]) -> None:
    folder = write_run("a")
    assert read_run(folder).clock == "virtual time"
    (folder / "network.toml").touch()
    assert read_run(folder).clock == "time"


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
        strategy="fedavg-s", figures="none", **settings,
    )  # fmt: skip
    return read_run(folder)


def row_sizes(*runs: Run) -> Sequence[int]:
    """How many runs each row over seeds has."""
    return [len(group.runs) for group in group_runs(runs, over_seeds=True)]


def test_seeds_deal_the_same_data_otherwise_and_are_one_row(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(seed), seed, workers=2, samples=30) for seed in (1, 2, 3)]
    assert row_sizes(*runs) == [3]
    assert "The runs differ" not in comparison_table(compare(runs)).markdown()


def test_another_model_or_other_data_is_another_row_and_is_said(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", 1, workers=2)
    wider = made(tmp_path / "wider", 2, model=net(9), workers=2)
    other = made(tmp_path / "other", 3, train=points(40, 5), workers=2)
    tested = made(tmp_path / "tested", 4, test=points(20, 6), workers=2)
    assert row_sizes(plain, wider, other, tested) == [1, 1, 1, 1]
    text = comparison_table(compare([plain, wider])).markdown()
    assert "The runs differ in model: compare times with care." in text
    assert "(model=Sequential " in text
    text = comparison_table(compare([plain, other])).markdown()
    assert "The runs differ in data: compare times with care." in text
    assert "(data=40 samples " in text


def test_data_that_is_dealt_otherwise_by_its_owner_is_other_data(tmp_path: Path) -> None:
    halves = [[(each[first::2]) for each in TRAIN] for first in (0, 1)]
    blocks = [[each[:20] for each in TRAIN], [each[20:] for each in TRAIN]]
    runs = [
        made(tmp_path / str(number), number, train=[tuple(part) for part in dealt])
        for number, dealt in enumerate((halves, halves, blocks))
    ]
    assert row_sizes(*runs) == [2, 1]


def test_the_section_of_the_strategy_counts_as_its_settings(tmp_path: Path) -> None:
    text = 'strategy = "adaptcl"\naggregation = "by-worker"\n[adaptcl]\naggregation = "by-unit"\n'
    (tmp_path / "config.toml").write_text(text)
    assert read_run(tmp_path).config == {"strategy": "adaptcl", "aggregation": "by-unit"}


def test_a_folder_without_or_with_damaged_marks_is_read_all_the_same(tmp_path: Path) -> None:
    run = made(tmp_path / "r", 1, workers=2)
    for text in ("{", "{}", '{"model": 3}'):
        (tmp_path / "r" / ".begun-with.json").write_text(text)
        assert read_run(tmp_path / "r").config["model"] == "(given from Python)"
    (tmp_path / "r" / ".begun-with.json").unlink()
    assert read_run(tmp_path / "r").summary == run.summary
