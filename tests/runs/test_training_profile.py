"""A training profile is measured where no preset says how long training takes, and kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adaptcl
from adaptcl.config.job import JobSettings
from adaptcl.events import RunStarted
from adaptcl.runs import training_profile
from adaptcl.runs.files.run_files import read_settings
from adaptcl.runs.training_profile import Measurement
from adaptcl.runs.workload import workload_from_python
from adaptcl.training import Recipe, Task
from tests.fixed_profile import really_measured
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after, small_run

Told = tuple[int, str, str]
CALM = {"max_importance_lost": 1.0, "least_speed_up": 1.0}


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every measurement of this test gives another time; their number is the list's length."""
    taken: list[int] = []

    def measure(workload: Any, recipe: Recipe, *_: Any) -> Measurement:
        taken.append(len(taken) + 1)
        times = {"train_time": float(len(taken)), "profile_epochs": recipe.epochs}
        return Measurement({**times, "flops_share": 0.5, "samples_share": 1.0})

    monkeypatch.setattr(training_profile, "measure", measure)
    monkeypatch.setattr(training_profile, "_MEASURED", {})
    return taken


def fresh_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was measured, as another program would not know it."""
    monkeypatch.setattr(training_profile, "_MEASURED", {})


# The measurement ---------------------------------------------------------------------------------


def measured(width: int) -> Measurement:
    model = nn.Sequential(
        nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 4),
    )  # fmt: skip
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    job = JobSettings(workers=4)
    workload = workload_from_python(model, clouds(240), clouds(20, 1), job)
    state = torch.get_rng_state()
    found = really_measured(workload, Recipe(epochs=0.5, batch_size=16), 1, "tf32")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in workload.model.state_dict().items())
    return found


@pytest.mark.slow
def test_a_large_model_takes_longer_and_its_time_shrinks_with_its_flops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_profile, "_ENOUGH", 0.05)
    small, large = measured(8).profile, measured(2048).profile
    assert 0 < 2 * small["train_time"] < large["train_time"]
    assert large["flops_share"] >= 0.5
    for each in (small, large):
        assert each["train_time"] == float(f"{each['train_time']:.2g}")
        assert (each["profile_epochs"], each["samples_share"]) == (0.5, 1.0)


def test_a_model_that_does_not_classify_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_profile, "measure", really_measured)
    monkeypatch.setattr(training_profile, "_ENOUGH", 0.01)
    fresh_program(monkeypatch)
    inputs = torch.randn(60, 6)
    data = inputs, inputs.sum(1, keepdim=True)
    settings: dict[str, Any] = {"objective": "regression", "workers": 2, "rounds": 1}
    result = adaptcl.run(nn.Linear(6, 1), data, data, strategy="fedavg", **settings)
    assert result.rounds[0].workers[0].train_s > 0


class Disturbed:
    """A worker whose trainings take the given times, one after another."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self._seconds = itertools.cycle(seconds)

    def carry_out(self, *_: Any) -> None:
        self.now += next(self._seconds)

    def trials(self, *, is_captured: bool = False) -> list[training_profile._Trials]:
        tasks = [Task(0, 1, {}, torch.ones(1), Recipe())] * 2
        given: Any = (self, tasks, 1, lambda: self.now)
        return training_profile._trials(*given, is_captured=is_captured)


def test_trials_that_other_programs_disturb_do_not_count() -> None:
    for found in Disturbed(0.1, 0.5, 0.7, 0.1, 0.1, 0.4, 0.1).trials():
        assert found.best == pytest.approx(0.1)
        assert found.spread == pytest.approx(1.0)


def test_a_first_step_that_is_captured_does_not_count() -> None:
    slow_at_first = (9.0, 9.0, *[0.1] * 30)
    assert [each.best for each in Disturbed(*slow_at_first).trials()] == [9.0, 9.0]
    captured = Disturbed(*slow_at_first).trials(is_captured=True)
    assert [each.best for each in captured] == pytest.approx([0.1, 0.1])


def test_trials_that_never_agree_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_profile, "_PATIENCE", 0.0)
    (found, _) = Disturbed(*(0.1 * 2**n for n in range(20))).trials()
    assert found.spread > 2
    assert Measurement({}, 1.2).in_words() == "by a measurement on this machine"
    assert Measurement({}, 2.31).in_words() == (
        "by an uncertain measurement on this machine (trials differ by a factor of 2.3; is it "
        "busy? `train_time` gives one)"
    )


# When it is made, and what becomes of it ---------------------------------------------------------


def test_a_model_from_python_has_a_measured_clock_and_the_run_says_so(
    stopwatch: list[int], tmp_path: Path
) -> None:
    heard: list[Any] = []
    result = small_run(tmp_path / "run", rounds=2, jitter=0.0, listeners=[heard.append])
    assert stopwatch == [1]
    assert [each.train_s for each in result.rounds[0].workers] == pytest.approx([1.0] * 4)
    kept = read_settings(tmp_path / "run")
    assert (kept["train_time"], kept["flops_share"], kept["samples_share"]) == (1.0, 0.5, 1.0)
    (started,) = (each for each in heard if isinstance(each, RunStarted))
    assert "training takes 1.00 s by a measurement on this machine" in started.clock


@pytest.mark.parametrize(
    "given", [{"train_time": 3.0}, {"preset": "default", "bandwidth_max": 1e-4}]
)
def test_a_given_time_or_a_named_preset_needs_no_measurement(
    stopwatch: list[int], tmp_path: Path, given: dict[str, Any]
) -> None:
    small_run(tmp_path / "run", rounds=2, **given)
    assert stopwatch == []


def test_runs_of_one_program_share_a_measurement(stopwatch: list[int]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    for strategy, seed in itertools.product(("fedavg-s", "adaptcl"), (1, 2)):
        options: dict[str, Any] = {"strategy": strategy, "seed": seed, "rounds": 2, "workers": 3}
        options |= {"sigma": 2.0, "adaptcl": CALM}
        adaptcl.run(model, clouds(90), clouds(30, 1), partition="dirichlet", **options)
    assert stopwatch == [1]
    adaptcl.run(model, clouds(99), clouds(30, 1), workers=3, rounds=2, adaptcl=CALM)
    assert stopwatch == [1, 2]


def test_a_resumed_run_keeps_the_clock_it_began_with(
    stopwatch: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "whole", rounds=4)
    with pytest.raises(CutOffError):
        small_run(tmp_path / "cut", rounds=4, listeners=[cut_off_after(2)])
    fresh_program(monkeypatch)
    small_run(tmp_path / "cut", rounds=4, resume=True)
    assert stopwatch == [1]
    assert_same(tmp_path / "cut", tmp_path / "whole")
    small_run(tmp_path / "cut", rounds=4, resume=True)  # finished: nothing is left to do
    assert stopwatch == [1]


@pytest.mark.slow
def test_a_settings_file_of_a_run_makes_the_same_run_again(
    stopwatch: list[int],
    command: Callable[..., Told],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--data", "digits", "--workers", "2", "--rounds", "2", "--epochs", "0.2"]
    several = ["--strategy", "fedavg-s,adaptcl", "--out", "first"]
    status, output, _ = command("run", *words, *several)
    assert status == 0
    assert stopwatch == [1]
    assert output.count("clock: training takes 1.00 s by a measurement on this machine") == 1
    fresh_program(monkeypatch)
    assert command("run", "first/adaptcl/config.toml", "--out", "again")[0] == 0
    assert stopwatch == [1]
    assert_same(tmp_path / "again", tmp_path / "first" / "adaptcl")


def test_a_forecast_of_another_model_is_made_with_its_measured_time(
    stopwatch: list[int], command: Callable[..., Told]
) -> None:
    words = ["--data", "digits", "--workers", "2", "--rounds", "2"]
    status, output, errors = command("forecast", *words, "--strategy", "fedavg-s,adaptcl")
    assert (status, errors) == (0, "")
    assert stopwatch == [1]
    assert output.startswith("clock: training takes 1.00 s by a measurement on this machine")
    assert command("forecast", "--rounds", "2")[1].startswith("clock: training takes 20.0 s, 80%")
    assert stopwatch == [1]
