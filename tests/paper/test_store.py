"""The folder of results, and the clock of a run in another environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.config.config import Config, configure
from paper.experiment import Experiment
from paper.process import carry_out
from paper.result import Provenance, ResultError, RunResult, write_result
from paper.store import (
    Store,
    clock_is_free,
    identifying_settings,
    reclock,
    result_path,
    run_id,
    run_key,
)

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
        {"sigma": 5.0, "bandwidth_max": 0.3, "speeds": (2.0, 1.0, 0.5)},
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


def values(**settings: Any) -> dict[str, Any]:
    return configure(settings).values()


def test_a_setting_without_effect_makes_no_other_run() -> None:
    every: list[dict[str, Any]] = [
        {"device": "cuda"},
        {"precision": "bf16"},
        {"threads": 3},
        {"checkpoint_every": 7},
        {"data_dir": "elsewhere"},
        {"label_share": 20.0},
        {"concentration": 9.0},
        {"dgc_sparsity": 0.5},
        {"lambda_0": 1.0},
        {"strategy": "adaptcl", "fading": 0.2},
    ]
    for settings in every:
        assert run_key(values(**settings)) == run_key(values())


def test_a_setting_with_an_effect_makes_another_run() -> None:
    every: list[dict[str, Any]] = [
        {"seed": 2},
        {"sigma": 5.0},
        {"rounds": 149},
        {"strength": 0.3},
        {"partition": "by-label"},
        {"samples": 1000},
        {"codec": "dgc"},
        {"strategy": "fedavg-s"},
        {"evaluate_every": 2},
        {"fading": 0.1},
        {"aggregation": "by-worker"},
    ]
    for settings in every:
        assert run_key(values(**settings)) != run_key(values())
        assert run_id(values(**settings), "") != run_id(values(), "")


def test_fading_makes_another_run_only_by_change() -> None:
    for strategy in ("adaptcl", "fedavg-s"):
        by_worker = values(strategy=strategy, aggregation="by-worker")
        assert run_key(by_worker) == run_key({**by_worker, "fading": 0.5})


@pytest.mark.parametrize("codec", ["plain", "int8", "dgc"])
def test_a_result_from_before_models_were_encoded_sent_them_plain(codec: str) -> None:
    old = values(strategy="fedavg", codec=codec)
    del old["codec_down"]
    assert run_key(old) == run_key(values(strategy="fedavg", codec=codec, codec_down="plain"))
    both_ways = values(strategy="fedavg", codec=codec)
    assert (run_key(old) == run_key(both_ways)) == (codec != "int8")
    assert clock_is_free(both_ways) == (codec != "dgc")


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-s"])
def test_with_whole_models_it_makes_no_difference_how_sub_models_are_merged(strategy: str) -> None:
    other = values(strategy=strategy, aggregation="by-change", fading=0.2)
    assert run_key(other) == run_key(values(strategy=strategy))


def test_a_result_from_before_fading_existed_has_none() -> None:
    before = values(aggregation="by-change", fading=0.0)
    assert (
        run_key({k: v for k, v in before.items() if k != "fading"})
        == run_key(before)
        != run_key(values())
    )


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-s"])
def test_behind_a_full_barrier_the_environment_has_no_effect(strategy: str) -> None:
    here, there = values(strategy=strategy, sigma=2.0), values(strategy=strategy, sigma=20.0)
    assert clock_is_free(here)
    assert run_key(here) == run_key(there)


def test_otherwise_the_environment_makes_another_run() -> None:
    every: list[dict[str, Any]] = [
        {"strategy": "adaptcl"},
        {"strategy": "ssp-s"},
        {"strategy": "fedavg-s", "deadline": 2.0},
        {"strategy": "fedavg-s", "participants": 3},
        {"strategy": "fedavg-s", "codec": "dgc"},
        {"strategy": "fedavg-s", "jitter": 0.1},
        {"strategy": "fedavg-s", "samples_share": 0.5},
    ]
    for settings in every:
        assert not clock_is_free(values(**settings))
        assert run_key(values(**settings, sigma=2.0)) != run_key(values(**settings, sigma=20.0))


def test_a_setting_of_a_later_version_keeps_old_results_valid() -> None:
    now = values(strategy="adaptcl")
    before = {name: value for name, value in now.items() if name != "grow"}
    assert run_key(before) == run_key(now)


def test_a_changed_default_makes_another_run() -> None:
    before = {**values(), "strength": 0.5}
    assert identifying_settings(before)["strength"] == 0.5
    assert run_key(before) != run_key(values())


def test_other_data_gives_the_files_another_name() -> None:
    assert run_id(values(), "one") != run_id(values(), "other")
