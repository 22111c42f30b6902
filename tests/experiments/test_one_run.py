"""One run, from its settings to its result, also when it is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptcl.config import configure
from adaptcl.experiments.one_run import carry_out
from adaptcl.experiments.provenance import Provenance
from adaptcl.experiments.result import RunResult, write
from adaptcl.experiments.store import Store
from adaptcl.materials import by_name
from adaptcl.run import run as run_from_python

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


def test_where_the_run_was_made_is_not_among_its_settings(result: RunResult) -> None:
    assert not {"data_dir", "device", "threads"} & result.settings.keys()


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
    assert again.sub_models == result.sub_models


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
    materials = by_name(ADAPTIVE.job)
    values = {k: v for k, v in ADAPTIVE.values().items() if k not in ("model", "data")}
    given = {k: v for k, v in values.items() if v is not None}
    other = run_from_python(
        materials.model, list(materials.parts), materials.test, preset="default", **given
    )
    assert [record.virtual_time_s for record in other.rounds] == pytest.approx(
        result.course.virtual_time_s, abs=1e-3
    )
    assert other.summary.accuracy == result.summary.accuracy
    assert result.summary.retention == other.summary.retention
