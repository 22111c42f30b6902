"""Grids of settings. `sigma` and the like stand for any setting."""

from __future__ import annotations

from typing import Any

import pytest

from adaptcl.config.grid import expand_grid
from adaptcl.errors import SettingError


def names(**values: Any) -> list[str]:
    return [point.name for point in expand_grid({"rounds": 2, **values})]


def test_every_combination_of_the_lists_is_a_run_with_a_name_of_its_own() -> None:
    found = expand_grid({"strategy": ["fedavg", "adaptcl"], "seed": [1, 2], "sigma": [2, 5]})
    assert [point.name for point in found][:4] == [
        "fedavg_sigma-2_seed-1",
        "fedavg_sigma-5_seed-1",
        "adaptcl_sigma-2_seed-1",
        "adaptcl_sigma-5_seed-1",
    ]
    assert len({point.name for point in found}) == 8
    last = found[-1].config
    assert (last.job.strategy, last.job.seed, last.environment.sigma) == ("adaptcl", 2, 5.0)
    assert names() == ["run"]
    assert names(seed=range(1, 3)) == names(seed=[1, 2]) == ["seed-1", "seed-2"]


def test_runs_that_differ_in_nothing_that_has_an_effect_are_made_once() -> None:
    assert names(strategy=["fedavg", "adaptcl"], min_retention=[0.1, 0.3]) == [
        "fedavg",
        "adaptcl_min_retention-0.1",
        "adaptcl_min_retention-0.3",
    ]
    assert names(codec=["int8", "dgc"], dgc_sparsity=[0.5, 0.9]) == [
        "codec-int8",
        "codec-dgc_dgc_sparsity-0.5",
        "codec-dgc_dgc_sparsity-0.9",
    ]
    assert names(strategy="fedavg", seed=[1, 1]) == ["seed-1"]
    own = {"objective": "mine:Objective", "target_accuracy": [80, 90]}
    assert names(**own) == ["target_accuracy-80", "target_accuracy-90"]


def test_a_list_in_a_section_is_for_that_strategy_alone() -> None:
    found = names(strategy="fedavg-s, adaptcl", adaptcl={"min_retention": [0.1, 0.3]})
    assert found == ["fedavg-s", "adaptcl_min_retention-0.1", "adaptcl_min_retention-0.3"]


def test_a_setting_that_is_a_list_takes_a_list_of_lists() -> None:
    once = expand_grid({"workers": 2, "bandwidths": [1.0, 2.0]})
    assert [point.config.environment.bandwidths for point in once] == [(1.0, 2.0)]
    twice = expand_grid({"workers": 2, "bandwidths": [[1.0, 2.0], [3.0, 4.0]]})
    assert [point.config.environment.bandwidths for point in twice] == [(1.0, 2.0), (3.0, 4.0)]
    # A setting that may be a list or a word is no different.
    widths = {"strategy": "heterofl", "workers": 2, "worker_widths": [0.5, 1.0]}
    assert [point.values["worker_widths"] for point in expand_grid(widths)] == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sigma": [2, "high"]}, "sigma is 'high', but it must be a number"),
        ({"sgima": [2, 3]}, "There is no setting 'sgima'; did you mean 'sigma'?"),
        ({"strategy": []}, r"strategy is \[\], but it must be one of"),
        ({"seed": {1, 2}}, r"seed is \{1, 2\}, but it must be a whole number"),
        ({"seed": []}, r"seed is \[\], but it must be a whole number"),
        ({"sigma": []}, r"sigma is \[\], but it must be a number"),
        ({"strategy": ["fedavg", "fedavg"]}, "must not name a strategy twice"),
        ({"threads": [1, 2]}, "threads changes nothing of what a run learns"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_runs(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        expand_grid(values)
