"""The formula of docs/environments.md, on the run that it shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "environments.md").read_text("utf-8")
SECTION = DOCUMENT.partition("## The formula")[2].partition("\n## ")[0]


def test_the_formula_gives_the_times_of_a_run(command: Callable[..., tuple[int, str, str]]) -> None:
    (line,) = [each for each in SECTION.split("```") if each.strip().startswith("adaptcl run")]
    words = shlex.split(line.replace("\\\n", " "))
    assert command(*words[1:], "--figures", "none")[0] == 0
    (record,) = map(json.loads, Path("runs/clock/rounds.jsonl").read_text().splitlines())
    summary = json.loads(Path("runs/clock/summary.json").read_text())
    share = 1 - 2 * summary["flops_saved"]  # of two workers, of whom one has the whole model
    for worker, (flops, down, up, speed) in zip(
        record["workers"], [(share, 20e6, 5e6, 0.5), (1.0, 3e6, 1e6, 1.0)], strict=True
    ):
        assert worker["send_s"] == pytest.approx(worker["bytes_sent"] * 8 / down)
        assert worker["train_s"] == pytest.approx(10 * 2 / 1 * (0.2 + 0.8 * flops) / speed)
        assert worker["receive_s"] == pytest.approx(worker["bytes_received"] * 8 / up)
    small, whole = record["workers"]
    assert record["virtual_time_s"] == whole["update_time_s"]
    for told in (f"{share:.1%}".replace("%", " %"), f"{small['bytes_sent']} bytes",
                 f"{small['send_s']:.4f} s", f"{small['train_s']:.3f} s",
                 f"{small['receive_s']:.4f} s", f"{record['virtual_time_s']:.3f} s"):  # fmt: skip
        assert told in SECTION
