"""`adaptcl forecast` and `adaptcl describe`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Command = Callable[..., tuple[int, str, str]]

SMALL = ["--model", "small", "--data", "digits", "--workers", "2", "--rounds", "2",
         "--epochs", "0.2"]  # fmt: skip


def test_a_forecast_shows_the_times_of_runs_and_leaves_nothing_behind(command: Command) -> None:
    words = ("--strategy", "fedavg-s,adaptcl", "--mixing", "0.3")
    status, output, errors = command("forecast", *SMALL, *words)
    assert status == 0
    assert errors.startswith("adaptcl: mixing has no effect with strategy fedavg-s, adaptcl; ")
    assert all(word in output for word in ("fedavg-s", "adaptcl", "speed-up", "1.00×"))
    assert not Path("runs").exists()


def test_measured_times_cannot_be_forecast(command: Command) -> None:
    status, _, errors = command("forecast", *SMALL, "--training-time", "measured")
    assert status == 2
    assert "cannot be forecast" in errors


def test_a_model_is_described_layer_by_layer(command: Command) -> None:
    status, output, errors = command("describe", *SMALL, "--fixed", "features.0")
    assert (status, errors) == (0, "")
    rows = {line.split()[0]: line for line in output.splitlines()}
    assert rows["features.0"].endswith("fixed by a pattern")
    assert rows["classifier"].endswith("the model returns them")
    assert rows["features.4"].split()[:4] == ["features.4", "Conv2d", "32", "32"]
    assert " %) can be cut; no sub-model retains less than " in output
