"""Which settings matter in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptcl.config.config import configure
from adaptcl.config.effects import (
    changed_settings,
    explain_ineffective,
    has_effect,
    settings_in_effect,
)
from adaptcl.config.files import preset
from adaptcl.config.grid import expand_grid
from adaptcl.strategies import STRATEGIES


def test_a_data_set_that_ships_needs_no_folder() -> None:
    sentence = "data_dir has no effect with data digits, which ships."
    assert explain_ineffective(["data_dir"], [configure({"data": "digits"})]) == [sentence]
    assert explain_ineffective(["data_dir"], [configure({"data": "cifar10"})]) == []


def test_an_alpha_beside_dirichlet_may_be_meant_for_it() -> None:
    config = [configure({"partition": "dirichlet"})]
    sentence = "alpha is AdaptCL's caution; the α of Dirichlet is concentration."
    assert explain_ineffective(["alpha"], config) == [sentence]
    assert explain_ineffective(["alpha", "concentration"], config) == []
    assert explain_ineffective(["alpha"], [configure({})]) == []


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("dgc_sparsity", {"codec": "fp16"},
         "dgc_sparsity has no effect with codec fp16; it is for dgc."),
        ("staleness_threshold", {"strategy": "fedavg"},
         "staleness_threshold has no effect with strategy fedavg; it is for ssp-s."),
        ("label_share", {"partition": "iid"},
         "label_share has no effect with partition iid; it is for by-label."),
        ("sigma", {"bandwidths": [1.0] * 10},
         "sigma has no effect because bandwidths replaces it."),
        ("flops_share", {"train_time": 0.0}, "flops_share has no effect without train_time."),
        ("late_updates", {"late_updates": "drop"},
         "late_updates has no effect without deadline."),
        ("late_updates", {"strategy": "fedasync-s"},
         "late_updates has no effect with strategy fedasync-s; it is for fedavg, fedavg-s, "),
        ("strength", {"strategy": "fedavg"},
         "strength has no effect with strategy fedavg; it is for fedavg-s, fedasync-s, "),
        ("aggregation", {"strategy": "fedavg-s"},
         "aggregation has no effect with strategy fedavg-s; it is for adaptcl, heterofl, "),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_explained(
    name: str, settings: dict[str, Any], sentence: str
) -> None:
    (found,) = explain_ineffective([name], [configure(settings)])
    assert found.startswith(sentence)  # a later strategy may use it too


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dgc_sparsity", {"codec": "dgc"}),
        ("label_share", {"partition": "by-label"}),
        ("late_updates", {"late_updates": "drop", "deadline": 1.5}),
        ("sigma", {}),
        ("strength", {"strategy": "fedavg-s"}),
        ("rounds", {}),
    ],
)
def test_a_setting_with_an_effect_is_not(name: str, settings: dict[str, Any]) -> None:
    assert explain_ineffective([name], [configure(settings)]) == []


def test_a_strategy_declares_the_settings_that_it_does_not_use() -> None:
    for name, strategy in STRATEGIES.items():
        assert set(strategy.unused) <= set(configure({"strategy": name}).values())


def test_what_a_custom_strategy_leaves_unused_is_known_only_where_it_is_imported() -> None:
    custom = {"strategy": "adaptcl.strategies.synchronous:FedAVG", "strength": 0.5}
    assert has_effect("strength", custom)
    (sentence,) = explain_ineffective(["strength"], [configure(custom)])
    assert sentence.startswith(
        "strength has no effect with strategy adaptcl.strategies.synchronous:"
    )
    assert len(expand_grid({**custom, "strength": [0.1, 0.9]})) == 1


def test_an_effect_with_one_of_several_strategies_is_enough() -> None:
    both = [configure({"strategy": each}) for each in ("fedavg", "ssp-s")]
    assert explain_ineffective(["staleness_threshold"], both) == []
    (sentence,) = explain_ineffective(["pruning_interval"], both)
    assert "strategy fedavg, ssp-s; it is for adaptcl" in sentence


def test_runs_with_the_same_settings_in_effect_are_the_same_run() -> None:
    def in_effect(**values: Any) -> dict[str, Any]:
        return settings_in_effect(configure({"strategy": "fedavg-s", **values}).values())

    assert in_effect(device="cuda", threads=3, label_share=20.0, beta=0.5) == in_effect()
    assert in_effect(learning_rate=0.5) != in_effect()
    assert in_effect(partition="by-label", label_share=20.0) != in_effect(partition="by-label")
    assert not {"beta", "label_share", "device"} & set(in_effect())


def test_simulated_machines_have_no_effect_in_a_run_across_a_network() -> None:
    values = configure({}).values()
    for name in ("sigma", "trace"):
        assert has_effect(name, values)
        assert not has_effect(name, values, networked=True)


def test_the_settings_file_of_a_run_changes_nothing_from_its_preset(tmp_path: Path) -> None:
    for name in ("default", "paper-cifar10-iid"):
        for strategy in ("adaptcl", "heterofl", "adaptcl, fedavg-s"):
            first = strategy.partition(",")[0]
            text = configure({**preset(name), "strategy": first}).to_toml()
            (tmp_path / "config.toml").write_text(text.replace(f'"{first}"', f'"{strategy}"'))
            assert changed_settings(tmp_path / "config.toml", name) == []
