"""Settings that nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptcl.config import configure, preset
from adaptcl.config.effects import has_effect, idle
from adaptcl.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("dgc_sparsity", {"codec": "fp16"},
         "dgc_sparsity has no effect with codec fp16; it is for dgc."),
        ("staleness_threshold", {"strategy": "fedavg"},
         "staleness_threshold has no effect with strategy fedavg; it is for ssp-s."),
        ("label_share", {"partition": "iid"},
         "label_share has no effect with partition iid; it is for by-label."),
        ("sigma", {"bandwidths": [1.0] * 10}, "sigma has no effect beside bandwidths."),
        ("late_updates", {"late_updates": "drop"},
         "late_updates has no effect without deadline."),
        ("late_updates", {"strategy": "fedasync-s"},
         "late_updates has no effect with strategy fedasync-s; it is for fedavg, fedavg-s, "
         "adaptcl, heterofl, fedrolex."),
        ("momentum", {"optimizer": "adamw"},
         "momentum has no effect with optimizer adamw; it is for sgd."),
        ("fading", {"aggregation": "by-worker"},
         "fading has no effect with aggregation by-worker; it is for by-change."),
        ("concentration", {"partition": "by-label"},
         "concentration has no effect with partition by-label; it is for dirichlet."),
        ("min_retention", {"pruned_rates": [[0.5] * 10]},
         "min_retention has no effect beside pruned_rates."),
        ("staleness_slope", {"strategy": "fedasync-s"},
         "staleness_slope has no effect with staleness_weight polynomial; it is for hinge."),
        ("strength", {"strategy": "fedavg"},
         "strength has no effect with strategy fedavg; it is for fedavg-s, fedasync-s, ssp-s, "
         "dc-asgd-a-s, adaptcl, heterofl, fedrolex, fedbuff."),
        ("beta", {"strategy": "ssp-s"},
         "beta has no effect with strategy ssp-s; it is for adaptcl."),
        ("aggregation", {"strategy": "fedavg-s"},
         "aggregation has no effect with strategy fedavg-s; it is for adaptcl, heterofl, "
         "fedrolex."),
    ],
)  # fmt: skip
def test_what_the_run_has_no_use_for_is_told(
    name: str, settings: dict[str, Any], sentence: str
) -> None:
    assert idle([name], [configure(settings)]) == [sentence]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dgc_sparsity", {"codec": "dgc"}),
        ("staleness_threshold", {"strategy": "ssp-s"}),
        ("label_share", {"partition": "by-label"}),
        ("late_updates", {"late_updates": "drop", "deadline": 1.5}),
        ("fading", {"aggregation": "by-change"}),
        ("sigma", {}),
        ("beta", {}),
        ("strength", {"strategy": "fedavg-s"}),
        ("rounds", {}),
    ],
)
def test_what_it_uses_is_not(name: str, settings: dict[str, Any]) -> None:
    assert idle([name], [configure(settings)]) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_has_the_settings_that_it_is_said_to_have_no_use_for(strategy: str) -> None:
    assert set(STRATEGIES[strategy].unused) <= set(configure({"strategy": strategy}).values())


def test_of_a_strategy_of_the_users_own_nobody_says_what_it_uses() -> None:
    own = {"strategy": "adaptcl.strategies.fedavg:FedAVGS", "beta": 0.5}
    assert has_effect("beta", own)
    assert idle(["beta"], [configure(own)]) == []


def test_one_of_several_strategies_is_enough() -> None:
    both = [configure({"strategy": each}) for each in ("fedavg", "ssp-s")]
    assert idle(["staleness_threshold"], both) == []
    assert "strategy fedavg, ssp-s; it is for adaptcl" in idle(["pruning_interval"], both)[0]


def test_a_forecast_tells_of_flags_that_change_nothing(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    status, _, errors = command("forecast", "--strategy", "fedavg-s", "--mixing", "0.3")
    assert (status, errors) == (
        0, "adaptcl: mixing has no effect with strategy fedavg-s; it is for fedasync-s.\n"
    )  # fmt: skip


def test_a_file_is_told_of_what_it_sets_in_vain_but_not_of_what_was_so_anyway(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    Path("mine.toml").write_text(
        'strategy = "fedavg-s"\nmin_retention = 0.5\nlabel_share = 80.0\n'
        "[adaptcl]\npruning_interval = 3\n"
    )
    status, _, errors = command("forecast", "mine.toml")
    assert (status, errors) == (
        0, "adaptcl: min_retention has no effect with strategy fedavg-s; it is for adaptcl.\n"
    )  # fmt: skip


def test_the_settings_that_a_run_leaves_are_told_nothing_of(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    Path("complete.toml").write_text(configure(preset("default")).to_toml())
    assert command("forecast", "complete.toml")[2] == ""
