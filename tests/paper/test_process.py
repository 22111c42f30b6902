"""One run, from its settings to its result, also if it is killed on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptcl.config.config import Config, configure
from adaptcl.runs import variants
from adaptcl.runs.session import run_session
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import load_workload
from paper.process import carry_out
from paper.result import Provenance, RunResult, write_result
from paper.store import Store

SETTINGS: dict[str, Any] = {
    "strategy": "adaptcl",
    "model": "small",
    "data": "digits",
    "samples": 400,
    "workers": 4,
    "rounds": 7,
    "epochs": 2.0,
    "batch_size": 16,
    "learning_rate": 0.05,
    "evaluate_every": 2,
    "pruning": "l1",
    "pruning_interval": 3,
    "pruned_rates": ((0.8,) * 4,) * 2,
    "strength": 0.0,
    "max_importance_lost": 0.0,
    "bandwidth_max": 0.05,
    "train_time": 24.1,
    "checkpoint_every": 2,
}
"""Prunings in rounds 3 and 6 that cost so much importance that the run warns of them; checkpoints
after rounds 2, 4 and 6."""
CONFIG = configure(SETTINGS)
UNSTEADY = {
    **SETTINGS,
    "samples": 200,
    "epochs": 1.0,
    "rounds": 4,
    "learning_rate": 0.3,
    "partition": "by-label",
}
del UNSTEADY["pruned_rates"], UNSTEADY["pruning"], UNSTEADY["pruning_interval"]
del UNSTEADY["max_importance_lost"]

Go = Callable[..., RunResult]


def ignore(done: int, total: int) -> None:
    pass


@pytest.fixture
def go(nobody: Provenance, tmp_path: Path) -> Go:
    """Carries out a run in a folder of its name."""

    def run(config: Config, folder: str, report: Callable[[int, int], None] = ignore) -> RunResult:
        return carry_out(config, nobody, tmp_path / folder, report)

    return run


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, nobody: Provenance) -> RunResult:
    work = tmp_path_factory.mktemp("one-run") / "work"
    result = carry_out(CONFIG, nobody, work, ignore)
    assert not work.exists()
    return result


def test_a_result_holds_the_series_and_the_prunings(result: RunResult) -> None:
    assert result.course.round == (1, 2, 3, 4, 5, 6, 7)
    tested = [n for n, a in enumerate(result.course.accuracy, start=1) if a is not None]
    assert tested == [2, 4, 6, 7]
    assert result.course.accuracy[-1] == pytest.approx(result.summary.accuracy, abs=1e-6)
    assert [each.round for each in result.workers] == [1, 3, 4, 6, 7]
    assert [each.round for each in result.workers if any(each.pruned_rate)] == [3, 6]
    assert [e.round for e in result.workers if e.pair_similarity is not None] == [3, 6]
    assert [warning[:9] for warning in result.warnings] == ["Round 3: ", "Round 6: "]
    kept = [size.parameters / result.whole.parameters for size in result.sub_models]
    assert kept == pytest.approx(result.summary.retention)


def test_the_run_is_the_one_that_the_settings_mean_anywhere_else(result: RunResult) -> None:
    workload = load_workload(CONFIG.job)
    assert sum(len(part) for part in workload.worker_samples) == 400
    other = run_session(simulated_session(CONFIG, workload))
    assert [record.virtual_time_s for record in other.rounds] == pytest.approx(
        result.course.virtual_time_s, abs=1e-3
    )
    assert other.summary.accuracy == result.summary.accuracy
    assert other.summary.retention == result.summary.retention


def test_a_result_survives_being_written_and_read(result: RunResult, tmp_path: Path) -> None:
    write_result(tmp_path / "one.json", result.to_json())
    assert (tmp_path / "one.json").stat().st_size < 40_000
    assert Store.open(tmp_path).find(CONFIG) == result


def test_where_the_run_was_made_is_not_in_a_result(go: Go, tmp_path: Path) -> None:
    result = go(configure({**SETTINGS, "data_dir": str(tmp_path), "rounds": 1}), "work")
    assert not {"data_dir", "device", "threads"} & result.settings.keys()
    assert str(tmp_path) not in json.dumps(result.to_json())


def test_a_run_that_is_killed_continues_and_ends_the_same(result: RunResult, go: Go) -> None:
    rounds: list[int] = []
    for stop in (3, 5, 7):

        def kill(done: int, total: int, stop: int = stop) -> None:
            rounds.append(done)
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            go(CONFIG, "work", kill)
    again = go(CONFIG, "work", lambda done, _: rounds.append(done))
    assert rounds == [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]
    assert again.course == result.course
    assert again.workers == result.workers
    assert again.sub_models == result.sub_models
    # Nothing from before the last checkpoint is lost, and nothing after it counts twice.
    assert again.warnings == result.warnings


def test_a_damaged_folder_starts_anew(go: Go, tmp_path: Path) -> None:
    config = configure({**SETTINGS, "rounds": 1})
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "config.toml").write_text(config.to_toml())
    (tmp_path / "work" / "checkpoint.safetensors").write_bytes(b"half a file")
    assert go(config, "work").course.round == (1,)


def test_the_mean_of_the_latest_models_is_tested_too(
    go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "USUAL_SHARE", 0.5)  # else few rounds have no mean
    plain = configure({**UNSTEADY, "strategy": "fedavg", "rounds": 8})
    found = go(plain, "plain").course
    alone = go(configure({**UNSTEADY, "strategy": "fedavg", "rounds": 8, "averaging": 0.5}), "mean")
    assert found.averaged_accuracy == alone.course.accuracy
    assert found.averaged_accuracy != found.accuracy

    def kill(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(plain, "killed", kill)
    assert go(plain, "killed").course == found


def test_fresh_statistics_are_tested_too(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "USUAL_COUNT", 50)
    found = go(configure({**UNSTEADY, "strategy": "ssp-s"}), "merged").course
    fresh = go(configure({**UNSTEADY, "strategy": "ssp-s", "fresh_statistics": 50}), "fresh")
    assert found.fresh_accuracy == fresh.course.accuracy
    assert found.fresh_accuracy != found.accuracy
