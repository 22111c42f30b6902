from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import models
from adaptcl.codecs import Parcel
from adaptcl.codecs.codec import Plain
from adaptcl.config.config import Config, configure
from adaptcl.config.files import over_preset, override, preset
from adaptcl.errors import SettingError
from adaptcl.report.table import forecast_table
from adaptcl.runs.forecast import Forecast, forecast, forecast_workload
from adaptcl.runs.simulated_session import simulated_session
from adaptcl.runs.workload import load_workload
from adaptcl.units import trace

WORKERS, SHAPE = 4, (1, 8, 8)
MODEL = models.build("small", SHAPE, 10, 1)
UNITS = trace(MODEL, torch.zeros(2, *SHAPE))
SAMPLES = [10, 12, 16, 20]
JOB: dict[str, Any] = {
    "workers": WORKERS,
    "rounds": 5,
    "sigma": 5.0,
    "bandwidth_max": 0.5,
    "train_time": 0.5,
    "batch_size": 4,
    "epochs": 1.0,
    "evaluate_every": 5,
    "samples_share": 0.5,
}


def configured(**settings: Any) -> Config:
    return configure(override(preset("default"), {**JOB, **settings}))


def simulated(**settings: Any) -> adaptcl.Result:
    parts = [(torch.randn(count, *SHAPE), torch.arange(count) % 10) for count in SAMPLES]
    return adaptcl.run(MODEL, parts, parts[0], **{**JOB, **settings})


class Silent(Plain):
    """Does not say its size."""

    def size(self, parcel: Parcel) -> Any:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg-s", "adaptcl", "heterofl", "ssp-s", "fedbuff"])
def test_a_forecast_is_the_clock_of_the_run_itself(strategy: str) -> None:
    own = {"pruning": "index", "pruning_interval": 2} if strategy == "adaptcl" else {}
    found = forecast(configured(strategy=strategy, **own), UNITS, SAMPLES)
    run = simulated(strategy=strategy, **own)
    assert found.virtual_time_s == pytest.approx(run.summary.virtual_time_s, rel=1e-9)
    ends = [record.virtual_time_s for record in run.rounds]
    begins = [0.0, *ends[:-1]]
    expected = [end - begin for begin, end in zip(begins, ends, strict=True)]
    assert found.round_times_s == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.heterogeneity == pytest.approx([r.heterogeneity for r in run.rounds], abs=1e-9)
    assert found.retention == pytest.approx(run.summary.retention)
    assert found.flops_saved == pytest.approx(run.summary.flops_saved)


def test_where_no_flops_can_be_counted_none_are_said_to_be_saved() -> None:
    uncounted = replace(UNITS, work=())
    found = forecast(configured(pruning="index", pruning_interval=2), uncounted, SAMPLES)
    assert min(found.retention) < 1
    assert found.flops_saved == 0


@pytest.mark.parametrize(
    "settings", [{"codec": "int8"}, {"codec": "dgc"}, {"codec": "plain", "codec_down": "fp16"}]
)
def test_with_codecs_too(settings: dict[str, Any]) -> None:
    own = {"pruning": "index", "pruning_interval": 2, **settings}
    found, run = forecast(configured(**own), UNITS, SAMPLES), simulated(**own)
    assert min(found.retention) < 1
    assert found.virtual_time_s == pytest.approx(run.summary.virtual_time_s, rel=1e-9)


def test_with_deadlines_participants_and_jitter_too() -> None:
    own = {"strategy": "fedavg", "deadline": 1.0, "participants": 3, "jitter": 0.2}
    found = forecast(configured(**own), UNITS, SAMPLES)
    run = simulated(**own)
    assert found.virtual_time_s == pytest.approx(run.summary.virtual_time_s, rel=1e-9)


def test_the_heterogeneity_is_that_of_the_workers_drawn_as_in_the_run() -> None:
    own = {"strategy": "fedavg-s", "participants": 2}
    found = forecast(configured(**own), UNITS, SAMPLES)
    run = simulated(**own)
    assert found.heterogeneity == pytest.approx([r.heterogeneity for r in run.rounds], abs=1e-9)
    assert len(set(found.heterogeneity)) > 2


def test_without_a_barrier_there_is_none_before_the_slowest_worker_has_a_time() -> None:
    found = forecast(configured(strategy="ssp-s", sigma=20.0), UNITS, SAMPLES).heterogeneity
    assert found[0] is None
    known = [each for each in found if each is not None]
    assert known == list(found[-len(known) :])
    assert known == pytest.approx([known[0]] * len(known))
    assert known[0] > 0.8


@pytest.mark.slow
def test_which_units_go_hardly_matters() -> None:
    own = {"strategy": "adaptcl", "pruning_interval": 2}
    found = forecast(configured(**own), UNITS, SAMPLES)
    run = simulated(**own)
    assert found.virtual_time_s == pytest.approx(run.summary.virtual_time_s, rel=0.1)


def test_what_cannot_be_known_beforehand_is_refused() -> None:
    with pytest.raises(SettingError, match=r"cannot be forecast: .*depends on what is learned"):
        forecast(configured(codec=f"{__name__}:Silent"), UNITS, SAMPLES)


def test_a_warning_of_several_forecasts_is_said_once() -> None:
    said = {"fedavg": ("slow links",), "adaptcl": ("slow links", "nobody is pruned")}
    found = [Forecast(name, (1.0,), (0.5,), (1.0,), 0.0, each) for name, each in said.items()]
    notes = forecast_table(found).notes
    assert notes[-2:] == ["fedavg and adaptcl: slow links", "adaptcl: nobody is pruned"]


def test_forecasts_are_held_against_fedavg_s_wherever_it_stands() -> None:
    slow = Forecast("fedavg-s", (60.0, 60.0), (0.5, 0.5), (1.0, 1.0), 0.0)
    fast = Forecast("adaptcl", (60.0, 20.0), (0.5, 0.01), (0.25, 1.0), 0.3)
    _, row = forecast_table([slow, fast]).rows
    assert row[:5] == ("adaptcl", "80.0 s", "2", "1.50×", "37.50 %")
    assert row[5:] == ("30.00 %", "25.00 %", "0.500 → 0.010")
    row, _ = forecast_table([fast, slow]).rows
    assert row[3] == "1.50×"
    other = replace(slow, strategy="ssp-s")
    assert [each[3] for each in forecast_table([fast, other]).rows] == ["1.00×", "0.67×"]


def test_who_does_more_rounds_until_a_time_is_faster() -> None:
    slow = Forecast("fedavg", (60.0,), (0.5,), (1.0, 1.0), 0.0)
    fast = Forecast("adaptcl", (30.0, 30.0), (0.5, 0.01), (0.25, 1.0), 0.3)
    assert [row[1:4] for row in forecast_table([slow, fast]).rows] == [
        ("60.0 s", "1", "1.00×"),
        ("60.0 s", "2", "2.00×"),
    ]


class ManyFlopsInFewParameters(nn.Module):
    """Convolutions that compute nearly everything, and a layer that is never cut with most of the
    parameters: pruning takes FLOPs away faster than parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.fixed = nn.Linear(32 * 16, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.last(torch.relu(self.fixed(self.features(inputs)))))


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_in_a_steady_world_the_fastest_worker_is_never_pruned(alpha: float) -> None:
    units = trace(ManyFlopsInFewParameters(), torch.zeros(2, 1, 28, 28), ("fixed",))
    settings = configured(
        strategy="adaptcl",
        alpha=alpha,
        rounds=30,
        workers=5,
        speeds=(0.2, 0.4, 0.6, 0.8, 1.0),
        bandwidths=(50.0,) * 5,
        flops_share=1.0,
        train_time=24.1,
    )
    found = forecast(settings, units, [600] * 5)
    assert found.retention[-1] == 1
    # And nobody is driven much below the time of the fastest: that would be a cascade.
    assert found.round_times_s[-1] == pytest.approx(found.round_times_s[0] / 5, rel=0.25)


# Warnings ----------------------------------------------------------------------------------------


def foreseen(model: nn.Module, **settings: object) -> Forecast:
    values = {"workers": 4, "rounds": 9, "sigma": 10.0, "strategy": "adaptcl", **settings}
    chosen = configure(override(preset("default"), values))
    return forecast(chosen, trace(model, torch.zeros(2, 20)), [10] * 4)


def test_a_model_that_is_too_little_cuttable_for_its_workers_is_told_of_once() -> None:
    # What a softmax mixes is never cut: of 40 and 10 units only the ten.
    fixed = nn.Sequential(
        nn.Linear(20, 40), nn.Softmax(1), nn.ReLU(), nn.Linear(40, 10), nn.ReLU(),
        nn.Linear(10, 10),
    )  # fmt: skip
    found = foreseen(fixed, least_speed_up=1.0)
    (warning,) = found.warnings
    assert "of this model's parameters can be cut: worker" in warning
    assert f"cannot get below {min(found.retention):.0%}" in warning
    assert forecast_table([found]).notes[1:] == [f"adaptcl: {warning}"]  # after its words


def test_a_model_that_can_be_cut_far_enough_is_not() -> None:
    found = foreseen(nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10)), sigma=2.0)
    assert min(found.retention) < 1
    assert found.warnings == ()
    assert len(forecast_table([found]).notes) == 1  # its words alone


def test_nothing_is_warned_of_in_the_default_job() -> None:
    chosen = configure(over_preset(None))
    workload = load_workload(chosen.job)
    assert simulated_session(chosen, workload).warnings == ()
    assert forecast_workload(chosen, workload).warnings == ()


def test_a_model_with_tied_and_frozen_tensors_is_forecast_too() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20), nn.Linear(20, 20))
    model[3].weight = model[2].weight
    model[0].requires_grad_(False)
    found = forecast(configured(), trace(model, torch.zeros(2, 20)), SAMPLES)
    assert found.virtual_time_s > 0


def test_a_run_that_ends_before_its_first_pruning_is_told_of() -> None:
    model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10))
    (warning,) = foreseen(model, first_pruning=10).warnings
    assert warning.startswith("Nobody will prune: the first pruning would be in round 10, after")
    (warning,) = foreseen(model, rounds=1).warnings
    assert warning.endswith("would be in round 2, after the only round; raise `rounds`.")
    assert foreseen(model, rounds=2).warnings == ()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "fedasync-s"])
def test_a_forecast_ends_at_the_time_at_which_the_run_ends(strategy: str) -> None:
    whole = forecast(configured(strategy=strategy), UNITS, SAMPLES)
    own = {"strategy": strategy, "max_virtual_time": sum(whole.round_times_s[:3]) - 0.001}
    found = forecast(configured(**own, target_accuracy=2.0, early_stopping=1), UNITS, SAMPLES)
    assert found.round_times_s == whole.round_times_s[:3]
    assert simulated(**own).summary.virtual_time_s == pytest.approx(found.virtual_time_s, rel=1e-9)
