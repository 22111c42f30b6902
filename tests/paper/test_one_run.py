"""One run, from its settings to its result, also when it is killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptcl.config import configure
from adaptcl.runs.materials import by_name
from adaptcl.runs.session import run_session, simulated_session
from paper import one_run
from paper.one_run import carry_out
from paper.provenance import Provenance
from paper.result import RunResult, write
from paper.store import Store

ADAPTIVE = configure(
    {
        "strategy": "adaptcl",
        "model": "small",
        "data": "digits",
        "workers": 4,
        "rounds": 5,
        "epochs": 0.5,
        "batch_size": 64,
        "evaluate_every": 2,
        "pruning_interval": 2,
        "max_importance_lost": 1.0,
        "bandwidth_max": 0.05,
        "checkpoint_every": 1,
    }
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, nobody: Provenance) -> RunResult:
    work = tmp_path_factory.mktemp("one-run") / "work"
    result = carry_out(ADAPTIVE, nobody, work, lambda done, total: None)
    assert not work.exists()
    return result


def test_a_result_holds_the_course_and_what_was_pruned(result: RunResult) -> None:
    assert result.course.round == (1, 2, 3, 4, 5)
    assert [a is None for a in result.course.accuracy] == [True, False, True, False, False]
    assert result.course.accuracy[-1] == pytest.approx(result.summary.accuracy, abs=1e-6)
    assert [each.round for each in result.workers] == [1, 2, 3, 4, 5]
    pruned = [each.round for each in result.workers if any(each.pruned_rate)]
    assert pruned == [2, 4]
    assert all(
        (each.pair_similarity is not None) == (each.round in pruned) for each in result.workers
    )
    assert result.whole.parameters == max(size.parameters for size in result.sub_models)
    kept = [size.parameters / result.whole.parameters for size in result.sub_models]
    assert kept == pytest.approx(result.summary.retention)


def test_the_mean_of_the_latest_models_is_tested_beside_the_last_one(
    nobody: Provenance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_run, "USUAL_SHARE", 0.5)  # else nothing is averaged in few rounds
    values = {name: value for name, value in ADAPTIVE.values().items() if value is not None}
    unsteady = {"strategy": "fedavg", "rounds": 8, "learning_rate": 0.3, "partition": "by-label"}
    plain = configure({**values, **unsteady})
    found = carry_out(plain, nobody, tmp_path / "plain", lambda done, total: None).course
    averaged = configure({**values, **unsteady, "averaging": 0.5})
    alone = carry_out(averaged, nobody, tmp_path / "mean", lambda done, total: None).course
    assert found.averaged_accuracy == alone.accuracy
    assert found.averaged_accuracy != found.accuracy

    def killed(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(plain, nobody, tmp_path / "killed", killed)
    again = carry_out(plain, nobody, tmp_path / "killed", lambda done, total: None).course
    assert again == found


def test_statistics_measured_anew_are_tested_beside_the_merged_ones(
    nobody: Provenance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_run, "USUAL_COUNT", 50)
    values = {name: value for name, value in ADAPTIVE.values().items() if value is not None}
    unsteady = {"strategy": "ssp-s", "rounds": 4, "learning_rate": 0.3, "partition": "by-label"}
    merged = configure({**values, **unsteady})
    found = carry_out(merged, nobody, tmp_path / "merged", lambda done, total: None).course
    fresh = configure({**values, **unsteady, "fresh_statistics": 50})
    alone = carry_out(fresh, nobody, tmp_path / "fresh", lambda done, total: None).course
    assert found.fresh_accuracy == alone.accuracy
    assert found.fresh_accuracy != found.accuracy


def test_a_run_on_some_of_the_samples_trains_on_as_many(nobody: Provenance, tmp_path: Path) -> None:
    values = {name: value for name, value in ADAPTIVE.values().items() if value is not None}
    config = configure({**values, "samples": 200, "rounds": 2})
    few = carry_out(config, nobody, tmp_path / "few", lambda done, total: None)
    materials = by_name(config.job)
    assert sum(len(part) for part in materials.parts) == 200
    other = run_session(simulated_session(configure({**values, "rounds": 2}), materials))
    assert few.summary.accuracy == other.summary.accuracy
    assert few.settings["samples"] == 200


def test_where_the_run_was_made_is_not_among_its_settings(result: RunResult) -> None:
    assert not {"data_dir", "device", "threads"} & result.settings.keys()


def test_no_path_of_the_machine_is_in_a_result(nobody: Provenance, tmp_path: Path) -> None:
    values = {name: value for name, value in ADAPTIVE.values().items() if value is not None}
    config = configure({**values, "data_dir": str(tmp_path), "rounds": 1})
    result = carry_out(config, nobody, tmp_path / "work", lambda done, total: None)
    assert str(tmp_path) not in json.dumps(result.to_json())


def test_a_result_survives_being_written_and_read(result: RunResult, tmp_path: Path) -> None:
    write(tmp_path / "one.json", result.to_json())
    assert (tmp_path / "one.json").stat().st_size < 40_000
    assert Store.open(tmp_path).find(ADAPTIVE) == result


def test_a_run_that_was_killed_goes_on_and_ends_the_same(
    result: RunResult, nobody: Provenance, tmp_path: Path
) -> None:
    rounds: list[int] = []

    def killed(done: int, total: int) -> None:
        rounds.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(ADAPTIVE, nobody, tmp_path / "work", killed)
    again = carry_out(ADAPTIVE, nobody, tmp_path / "work", lambda done, _: rounds.append(done))
    assert rounds == [1, 2, 3, 3, 4, 5]
    assert again.course == result.course
    assert again.workers == result.workers
    assert again.sub_models == result.sub_models


def test_what_was_seen_before_the_last_checkpoint_is_not_lost_and_after_it_not_counted_twice(
    nobody: Provenance, tmp_path: Path
) -> None:
    harmful = {
        "pruned_rates": ((0.6,) * 4,) * 2,
        "pruning": "l1",
        "strength": 0.0,
        "max_importance_lost": 0.0,
        "learning_rate": 0.05,
        "epochs": 2.0,
        "batch_size": 32,
    }
    often = {"rounds": 7, "pruning_interval": 3, "checkpoint_every": 2}
    values = {name: value for name, value in ADAPTIVE.values().items() if value is not None}
    config = configure({**values, **harmful, **often})
    whole = carry_out(config, nobody, tmp_path / "whole", lambda done, total: None)
    assert [each.round for each in whole.workers if each.pair_similarity is not None] == [3, 6]
    assert whole.warnings[0].startswith("Round 3: ")

    # Prunings are seen in rounds 3 and 6; checkpoints are written after rounds 2, 4 and 6.
    for stop in (3, 5, 7):

        def killed(done: int, total: int, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            carry_out(config, nobody, tmp_path / "work", killed)
    again = carry_out(config, nobody, tmp_path / "work", lambda done, total: None)
    assert again.warnings == whole.warnings
    assert again.workers == whole.workers


def test_a_damaged_folder_is_begun_anew(
    result: RunResult, nobody: Provenance, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "config.toml").write_text(ADAPTIVE.to_toml())
    (work / "checkpoint.safetensors").write_bytes(b"half a file")
    again = carry_out(ADAPTIVE, nobody, work, lambda done, total: None)
    assert again.course == result.course


def test_the_run_is_the_one_that_the_settings_mean_anywhere_else(result: RunResult) -> None:
    other = run_session(simulated_session(ADAPTIVE, by_name(ADAPTIVE.job)))
    assert [record.virtual_time_s for record in other.rounds] == pytest.approx(
        result.course.virtual_time_s, abs=1e-3
    )
    assert other.summary.accuracy == result.summary.accuracy
    assert result.summary.retention == other.summary.retention
