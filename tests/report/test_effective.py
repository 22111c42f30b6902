"""What a setting comes to in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptcl.report.labels import NONE, differing, effective
from adaptcl.report.runs import Run


def a_run(**settings: Any) -> Run:
    return Run(Path("nowhere"), "a", {"strategy": "adaptcl", **settings}, (), None)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("fading", {"aggregation": "by-change", "fading": 0.2}, "0.2"),
        ("fading", {"aggregation": "by-unit", "fading": 0.2}, None),
        ("sigma", {"sigma": 2.0, "bandwidths": []}, "2"),
        ("sigma", {"sigma": 2.0, "bandwidths": [1.0, 2.0]}, None),
        ("bandwidths", {"bandwidths": [1.0, 2.5]}, "1,2.5"),
        ("bandwidths", {"bandwidths": []}, NONE),
        ("strength", {"strategy": "fedavg", "strength": 0.3}, None),
        ("beta", {"strategy": "fedavg-s", "beta": 0.5}, None),
        ("beta", {"strategy": "my_methods:Mine", "beta": 0.5}, "0.5"),
        ("grow", {"grow": True}, "true"),
    ],
)
def test_it_is_told_unless_it_does_nothing(
    name: str, settings: dict[str, Any], text: str | None
) -> None:
    assert effective(a_run(**settings), name) == text


def test_runs_that_differ_in_what_does_nothing_do_not_differ() -> None:
    runs = [a_run(aggregation="by-unit", fading=fading) for fading in (0.1, 0.2)]
    assert differing(runs, ["aggregation", "fading"]) == []
