"""What is said about the clock before a run."""

from __future__ import annotations

import pytest
import torch

from adaptcl import models
from adaptcl.config.config import configure
from adaptcl.config.files import preset, presets
from adaptcl.engines.bandwidths import MIB
from adaptcl.engines.clock_in_words import (
    describe_clock,
    ends_at_once,
    lopsided,
    whole_updates,
)
from adaptcl.engines.environment import Environment, EnvironmentSettings
from adaptcl.settings import build
from adaptcl.training import Timing
from adaptcl.units import UnitMap, trace

SHAPES = {"fashion": (1, 28, 28)}


def described(units: UnitMap, source: str = "", **settings: object) -> str:
    chosen = build(EnvironmentSettings, {"profile_epochs": 1.0, **settings})
    environment = Environment(chosen, units, workers=2, epochs=1.0, seed=1)
    size = environment.whole_bytes
    updates = environment.whole_updates(size, size)
    return describe_clock(environment, updates, source)


def test_the_clock_is_told_in_one_line_with_the_shares_of_an_update(units: UnitMap) -> None:
    size = Environment(build(EnvironmentSettings, {}), units, 2, 1.0, 1).whole_bytes / MIB
    # The fastest worker needs ten seconds each way, and σ makes the slowest need 30.
    line = described(units, train_time=20.0, flops_share=0.5, bandwidth_max=size / 10, sigma=2.0)
    assert line == (
        "training takes 20.0 s, 50% of it in proportion to the sub-model's FLOPs and 0% to the "
        "worker's samples; links carry "
        f"{size * MIB / 30:.0f} to {size * MIB / 10:.0f} B/s; an update of the whole model 40.0 s "
        "(send 25%, train 50%, receive 25%) to 80.0 s (send 38%, train 25%, receive 38%)"
    )
    links_and_devices = {"links": ("3g",), "devices": ("laptop", "phone")}
    line = described(units, "by a guess", train_time=0.25, samples_share=1.0, **links_and_devices)
    assert line.startswith(
        "training takes 0.250 to 0.490 s by a guess, 0% of it in proportion to the sub-model's "
        "FLOPs and 100% to the worker's samples; links carry 732.4 KiB/s down and 158.7 KiB/s up; "
        "an update of the whole model 0.2"
    )


def test_a_codec_shortens_the_transfers_of_the_clock(units: UnitMap) -> None:
    environment = Environment(build(EnvironmentSettings, {}), units, 2, 1.0, 1)
    plain, halved = (
        whole_updates(environment, units, configure({"codec": codec}).codecs)[0]
        for codec in ("plain", "fp16")
    )
    assert halved.send < 0.6 * plain.send
    assert halved.receive < 0.6 * plain.receive


@pytest.mark.parametrize(
    ("links", "beginning"),
    [
        ((0.92, 0.99), "Sending and receiving the model take 92% of every update or more"),
        ((0.01, 0.04), "Sending and receiving the model take 4.0% of every update or less"),
        ((0.89, 0.99), None),
        ((0.01, 0.06), None),
        ((0.01, 0.99), None),
    ],
)
def test_a_clock_on_which_links_are_everything_or_nothing_is_warned_of(
    links: tuple[float, ...], beginning: str | None
) -> None:
    warning = lopsided([Timing(share / 2, 1 - share, share / 2) for share in links])
    assert (warning is None) == (beginning is None)
    assert warning is None or warning.startswith(beginning or "")


def test_a_time_limit_that_the_first_round_may_use_up_is_warned_of() -> None:
    updates = [Timing(1.0, 28.0, 1.0), Timing(50.0, 51.0, 50.0)]
    assert ends_at_once(0.0, updates) is None
    assert ends_at_once(151.0, updates) is None
    assert ends_at_once(30.0, updates) == (
        "max_virtual_time (--until) is 30.0 s, but an update of the whole model takes the slowest "
        "worker 2.5 min, so the run may end with its first round. A number alone is seconds; "
        "write 30min for minutes."
    )
    assert str(ends_at_once(0.5, updates)).endswith("so the run may end with its first round.")


def test_no_preset_is_warned_of() -> None:
    traced: dict[tuple[object, ...], UnitMap] = {}
    for name in (each for each in presets() if "tiny" not in each):  # a large net to trace
        config = configure(preset(name))
        shape = SHAPES.get(config.job.data, (3, 32, 32))
        key = (config.job.model, shape)
        if key not in traced:
            net = models.build(config.job.model, shape, 10, 1)
            traced[key] = trace(net, torch.zeros(2, *shape))
        workers = config.job.workers
        recipe, settings = config.recipe, config.environment
        environment = Environment(settings, traced[key], workers, recipe.epochs, 1)
        assert lopsided(whole_updates(environment, traced[key], config.codecs)) is None, name
