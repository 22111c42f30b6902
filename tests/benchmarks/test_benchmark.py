from __future__ import annotations

import inspect
import json
from pathlib import Path

from benchmarks import BENCHMARKS
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.machine import this_machine


def test_a_bar_holds_on_its_side() -> None:
    for bar, value, holds in (
        (Bar(0.35), 0.35, True),
        (Bar(0.35), 0.36, False),
        (Bar(1.15, at_least=True), 1.15, True),
        (Bar(1.15, at_least=True), 1.14, False),
    ):
        assert bar.holds(value) is holds
        assert Measurement("x", value, bar=bar).verdict == ("holds" if holds else "missed")
    assert Measurement("x", 1.0).verdict == ""


def test_the_json_holds_figures_bars_machine_and_details() -> None:
    rows = (Measurement("fast", 2.0, 0.5, Bar(1.5, at_least=True), 3.0), Measurement("free", 1.0))
    report = BenchmarkReport("A title", "times", rows, "once", ("note",), {"all": [1, 2]})
    found = json.loads(json.dumps(report.to_json("step", this_machine("cpu"))))
    assert found["benchmark"] == "step"
    assert found["rows"][0] == {
        "label": "fast",
        "value": 2.0,
        "seconds": 0.5,
        "bar": "≥ 1.5",
        "holds": True,
        "limit": 3.0,
    }
    assert found["rows"][1]["holds"] is None
    assert found["details"] == {"all": [1, 2]}
    assert found["machine"]["cores"] >= 1


def test_every_registered_benchmark_has_a_function_that_measures() -> None:
    for name, each in BENCHMARKS.items():
        assert list(inspect.signature(each.function()).parameters) == ["request"]
        assert each.name == name


def test_a_finished_part_is_not_measured_again(tmp_path: Path) -> None:
    request = Request(keep=str(tmp_path / "kept.jsonl"))
    assert request.finished("a", lambda: {"x": 1}) == {"x": 1}
    assert request.finished("b", lambda: {"x": 2}) == {"x": 2}
    assert Request(keep=request.keep).finished("a", dict) == {"x": 1}
