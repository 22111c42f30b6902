"""When two runs are the same run."""

from __future__ import annotations

from typing import Any

import pytest

from adaptcl.config import configure
from paper.identity import clock_is_free, key, run_id, what_matters


def values(**settings: Any) -> dict[str, Any]:
    return configure(settings).values()


@pytest.mark.parametrize(
    "settings",
    [
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
    ],
)
def test_what_has_no_effect_on_the_run_does_not_part_it(settings: dict[str, Any]) -> None:
    assert key(values(**settings)) == key(values())


@pytest.mark.parametrize(
    "settings",
    [
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
    ],
)
def test_what_has_an_effect_does(settings: dict[str, Any]) -> None:
    assert key(values(**settings)) != key(values())
    assert run_id(values(**settings), "") != run_id(values(), "")


def test_fading_parts_runs_by_change_alone() -> None:
    for strategy in ("adaptcl", "fedavg-s"):
        by_worker = values(strategy=strategy, aggregation="by-worker")
        assert key(by_worker) == key({**by_worker, "fading": 0.5})


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-s"])
def test_with_whole_models_it_makes_no_difference_how_sub_models_are_merged(strategy: str) -> None:
    other = values(strategy=strategy, aggregation="by-change", fading=0.2)
    assert key(other) == key(values(strategy=strategy))
    assert key({**other, "bn_variance": "variance"}) != key(other)


def test_a_result_from_before_units_could_fade_is_one_where_they_do_not() -> None:
    before = values(aggregation="by-change", fading=0.0)
    assert key({k: v for k, v in before.items() if k != "fading"}) == key(before) != key(values())


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-s"])
def test_behind_a_full_barrier_the_environment_has_no_effect(strategy: str) -> None:
    here, there = values(strategy=strategy, sigma=2.0), values(strategy=strategy, sigma=20.0)
    assert clock_is_free(here)
    assert key(here) == key(there)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "adaptcl"},
        {"strategy": "ssp-s"},
        {"strategy": "fedavg-s", "deadline": 2.0},
        {"strategy": "fedavg-s", "participants": 3},
        {"strategy": "fedavg-s", "codec": "dgc"},
        {"strategy": "fedavg-s", "jitter": 0.1},
        {"strategy": "fedavg-s", "samples_share": 0.5},
        {"strategy": "fedavg-s", "training_time": "measured"},
    ],
)
def test_elsewhere_it_has(settings: dict[str, Any]) -> None:
    assert not clock_is_free(values(**settings))
    assert key(values(**settings, sigma=2.0)) != key(values(**settings, sigma=20.0))


def test_a_setting_that_a_later_version_adds_does_not_part_old_results() -> None:
    now = values(strategy="adaptcl")
    before = {name: value for name, value in now.items() if name != "grow"}
    assert key(before) == key(now)


def test_a_default_that_has_changed_parts_them() -> None:
    before = {**values(), "strength": 0.5}
    assert what_matters(before)["strength"] == 0.5
    assert key(before) != key(values())


def test_other_data_gives_the_files_another_name() -> None:
    assert run_id(values(), "one") != run_id(values(), "other")
