from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptcl.errors import RunFolderError
from adaptcl.report import Run, distinct_labels, read_run

WriteRun = Callable[..., Path]
MakeRun = Callable[..., Run]


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
        ("config.toml", b"\xff\xfe", r"config\.toml is damaged: .+\.$"),
        ("config.toml", b"rounds = 3\n", r"config\.toml is damaged: it names no strategy\.$"),
        ("rounds.jsonl", b"{}\n{}\n", r"rounds\.jsonl is damaged: line 1 is not a round\.$"),
        ("rounds.jsonl", b"[1]\n", r"rounds\.jsonl is damaged: line 1 is not a round\.$"),
        ("rounds.jsonl", b"oops\n", r"rounds\.jsonl is damaged: line 1 is not JSON\.$"),
        ("rounds.jsonl", b"\x00\xff\n", r"rounds\.jsonl is damaged: line 1 is not JSON\.$"),
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


def test_a_broken_line_before_the_last_is_not_ignored(write_run: WriteRun) -> None:
    folder = write_run("one", rounds=3)
    path = folder / "rounds.jsonl"
    first, second, third, end = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join((first, second[:20], third, end)))
    with pytest.raises(RunFolderError, match="line 2 is not JSON"):
        read_run(folder)


def test_labels_that_are_distinct_stay_as_they_are(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg", seed=1), make_run("b", strategy="adaptcl", seed=2)]
    assert [run.label for run in distinct_labels(runs)] == ["fedavg", "adaptcl"]


def test_runs_of_one_strategy_are_told_apart_by_what_differs(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="adaptcl", settings={"sigma": 2.0}),
        make_run("b", strategy="fedavg"),
        make_run("c", strategy="adaptcl", settings={"sigma": 5.0}),
    ]
    labels = [run.label for run in distinct_labels(runs)]
    assert labels == ["adaptcl (sigma=2)", "fedavg", "adaptcl (sigma=5)"]


def test_the_seed_is_named_only_where_nothing_else_tells_runs_apart(make_run: MakeRun) -> None:
    by_both = [
        make_run(f"{sigma}-{seed}", seed=seed, settings={"sigma": sigma})
        for sigma in (2.0, 5.0)
        for seed in (1, 2)
    ]
    assert [run.label for run in distinct_labels(by_both)] == [
        "fedavg-s (sigma=2, seed=1)",
        "fedavg-s (sigma=2, seed=2)",
        "fedavg-s (sigma=5, seed=1)",
        "fedavg-s (sigma=5, seed=2)",
    ]
    by_sigma = [by_both[0], by_both[3]]
    labels = [run.label for run in distinct_labels(by_sigma)]
    assert labels == ["fedavg-s (sigma=2)", "fedavg-s (sigma=5)"]


def test_a_setting_left_out_reads_none(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", settings={"pruning": "cig"})]
    labels = [run.label for run in distinct_labels(runs)]
    assert labels == ["fedavg-s (pruning=none)", "fedavg-s (pruning=cig)"]


def test_runs_with_equal_settings_are_told_apart_by_their_folders(make_run: MakeRun) -> None:
    same_name = [make_run("x/run"), make_run("y/run")]
    labels = [run.label for run in distinct_labels([make_run("a"), make_run("b")])]
    assert labels == ["fedavg-s (a)", "fedavg-s (b)"]
    paths = [run.label for run in distinct_labels(same_name)]
    assert paths == [f"fedavg-s ({run.folder.as_posix()})" for run in same_name]


def test_no_two_labels_are_ever_equal(make_run: MakeRun) -> None:
    run = make_run("a")
    awkward = replace(run, label="fedavg-s (sigma=2)")
    others = [
        make_run("b", settings={"sigma": 2.0}),
        make_run("c", settings={"sigma": 5.0}),
    ]
    labels = [each.label for each in distinct_labels([run, run, awkward, *others])]
    assert len(set(labels)) == 5


def test_the_clock_of_a_run_across_a_network_is_a_real_one(tmp_path: Path) -> None:
    run = Run(tmp_path, "adaptcl", {"strategy": "adaptcl"}, (), None)
    assert run.clock == "virtual time"
    (tmp_path / "network.toml").touch()
    assert run.clock == "time"
