"""The folder of results, and the clock of a run in another environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.config import Config, configure
from paper.experiment import Experiment
from paper.identity import run_key
from paper.one_run import carry_out
from paper.provenance import Provenance
from paper.result import ResultError, RunResult, write_result
from paper.store import Store, reclock, result_path

MakeUp = Callable[..., RunResult]
Changed = Callable[..., Config]

SHORT = {
    "strategy": "fedavg-s",
    "model": "small",
    "data": "digits",
    "workers": 3,
    "rounds": 3,
    "samples": 60,
    "epochs": 0.5,
    "batch_size": 16,
    "evaluate_every": 2,
    "bandwidth_max": 0.05,
    "train_time": 24.1,
}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert Store.open(tmp_path / "none").runs == {}


def test_a_command_that_shows_results_needs_their_folder(tmp_path: Path) -> None:
    assert Store.existing(tmp_path).runs == {}
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(
            ResultError, match=rf"There is no folder of results \S+{name}; name one"
        ):
            Store.existing(tmp_path / name)


def test_a_result_is_found_by_what_it_is_and_not_by_its_name(
    tiny: Experiment, make_up: MakeUp, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    write_result(tmp_path / "any-name.json", make_up(row.config(1)).to_json())
    store = Store.open(tmp_path)
    assert store.find(row.config(1)) is not None
    assert store.find(row.config(2)) is None


def test_a_run_cut_short_answers_nothing(
    tiny: Experiment, make_up: MakeUp, changed: Changed, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    short = changed(row, rounds=2)
    write_result(tmp_path / "smoke.json", make_up(short, smoke=True).to_json())
    assert Store.open(tmp_path).find(row.config(1)) is None


def test_results_of_two_files_of_one_data_set_do_not_mix(
    tiny: Experiment, make_up: MakeUp, nobody: Provenance, tmp_path: Path
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    for seed, sha256 in ((1, "a" * 64), (2, "b" * 64)):
        made = make_up(row.config(seed), provenance=replace(nobody, data_sha256=sha256))
        write_result(result_path(tmp_path, made.settings, sha256), made.to_json())
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
        write_result(tmp_path / "one.json", {"what": object()})
    (tmp_path / "one.json").mkdir()
    with pytest.raises(ResultError, match="cannot be written"):
        write_result(tmp_path / "one.json", {"what": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def chosen(**environment: Any) -> Config:
    return configure({**SHORT, **environment})


def simulated(config: Config, nobody: Provenance, work: Path) -> RunResult:
    return carry_out(config, nobody, work, lambda done, total: None)


@pytest.mark.parametrize(
    "other",
    [
        {"sigma": 5.0, "bandwidth_max": 0.3, "train_time": 3.0, "flops_share": 0.8},
        {"bandwidths": (0.1, 0.4, 0.2), "speeds": (2.0, 1.0, 0.5)},
    ],
)
def test_the_computed_clock_is_the_simulated_clock(
    other: dict[str, Any], nobody: Provenance, tmp_path: Path
) -> None:
    made = simulated(chosen(sigma=2.0), nobody, tmp_path / "here")
    there = simulated(chosen(**other), nobody, tmp_path / "there")
    computed = reclock(made, chosen(**other))
    assert computed.course.accuracy == there.course.accuracy
    assert computed.course.virtual_time_s == pytest.approx(there.course.virtual_time_s, abs=2e-3)
    assert computed.course.heterogeneity == pytest.approx(there.course.heterogeneity, abs=1e-5)
    assert computed.settings == there.settings
    for name in ("virtual_time_s", "best_virtual_time_s", "heterogeneity_first"):
        ours, theirs = (getattr(each.summary, name) for each in (computed, there))
        assert ours == pytest.approx(theirs)
    for ours, theirs in zip(computed.workers, there.workers, strict=True):
        assert ours.update_time_s == pytest.approx(theirs.update_time_s, abs=2e-3)
    assert made.course.virtual_time_s != there.course.virtual_time_s


def test_a_run_that_depends_on_its_environment_keeps_its_clock(make_up: MakeUp) -> None:
    adaptive = configure({**SHORT, "strategy": "adaptcl"})
    made = make_up(adaptive)
    assert reclock(made, replace(adaptive)) is made


def test_one_run_behind_a_barrier_answers_for_every_environment(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    row = tiny.parts[0].row("FedAVG-S")
    made = make_up(changed(row, sigma=5.0))
    store = Store(Path("nowhere"), {run_key(made.settings): made})
    for sigma in (2.0, 20.0):
        found = store.find(changed(row, sigma=sigma))
        assert found is not None
        assert found.settings["sigma"] == sigma
