"""The folder of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adaptcl.config import Config
from paper.experiment import Experiment
from paper.provenance import Provenance
from paper.result import ResultError, RunResult, write
from paper.store import Store, result_path

MakeUp = Callable[..., RunResult]
Changed = Callable[..., Config]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert Store.open(tmp_path / "none").runs == {}


def test_who_only_looks_at_results_wants_a_folder_that_is_there(tmp_path: Path) -> None:
    assert Store.existing(tmp_path).runs == {}
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(ResultError, match=rf"there is no folder \S+{name}; name one"):
            Store.existing(tmp_path / name)


def test_a_result_is_found_by_what_it_is_and_not_by_its_name(
    tiny: Experiment, make_up: MakeUp, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    write(tmp_path / "any-name.json", make_up(row.config(1)).to_json())
    store = Store.open(tmp_path)
    assert store.find(row.config(1)) is not None
    assert store.find(row.config(2)) is None


def test_a_run_cut_short_answers_nothing(
    tiny: Experiment, make_up: MakeUp, changed: Changed, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    short = changed(row, rounds=2)
    write(tmp_path / "smoke.json", make_up(short, smoke=True).to_json())
    assert Store.open(tmp_path).find(row.config(1)) is None


def test_results_of_two_files_of_one_data_set_do_not_mix(
    tiny: Experiment, make_up: MakeUp, nobody: Provenance, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    for seed, sha256 in ((1, "a" * 64), (2, "b" * 64)):
        made = make_up(row.config(seed), provenance=replace(nobody, data_sha256=sha256))
        write(result_path(tmp_path, made.settings, sha256), made.to_json())
    with pytest.raises(ResultError, match="another file of digits"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "kind": "run"}']
)
def test_a_file_that_is_no_result_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    with pytest.raises(ResultError, match=r"odd\.json"):
        Store.open(tmp_path)


def test_a_result_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(tmp_path / "one.json", {"what": object()})
    (tmp_path / "one.json").mkdir()
    with pytest.raises(ResultError, match="cannot be written"):
        write(tmp_path / "one.json", {"what": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
