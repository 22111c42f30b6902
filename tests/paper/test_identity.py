"""When two runs are the same run."""

from __future__ import annotations

from typing import Any

import pytest

from adaptcl.config import configure
from paper.identity import clock_is_free, identifying_settings, run_id, run_key


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
    assert run_key({**other, "bn_variance": "variance"}) != run_key(other)


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
        {"strategy": "fedavg-s", "training_time": "measured"},
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
