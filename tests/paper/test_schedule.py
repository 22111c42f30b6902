"""What is missing, in which order, and what fits into the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adaptcl.config import Config
from paper.experiment import Experiment
from paper.identity import key
from paper.reading import load_all, parse
from paper.result import RunResult
from paper.schedule import Estimator, Here, fits, missing
from paper.store import Store

MakeUp = Callable[..., RunResult]
Changed = Callable[..., Config]

NOTHING = Store(Path("nowhere"))


def planned(
    experiment: Experiment, store: Store = NOTHING, **here: object
) -> list[tuple[str, int]]:
    found = missing([experiment], store, replace(Here(), **here))  # type: ignore[arg-type]
    return [(each.config.job.strategy, each.config.job.seed) for each in found]


def test_a_run_that_two_rows_need_is_made_once(tiny: Experiment) -> None:
    assert sorted(planned(tiny)) == [
        ("adaptcl", 1),
        ("adaptcl", 2),
        ("fedavg-s", 1),
        ("fedavg-s", 2),
    ]
    everything = missing(load_all(), NOTHING, Here())
    assert len({key(each.config.values()) for each in everything}) == len(everything)


def test_the_urgent_come_first_and_of_those_the_first_seed(
    tiny: Experiment, tiny_text: str
) -> None:
    assert [seed for _, seed in planned(tiny)] == [1, 1, 2, 2]
    text = tiny_text.replace("priority = 1", "priority = 9", 1)
    assert planned(parse("tiny", text))[0] == ("fedavg-s", 1)


def test_what_is_there_is_not_made_again(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    config = changed(tiny.parts[0].row("FedAVG-S"), sigma=7.0)
    store = Store(Path("nowhere"), {key(config.values()): make_up(config)})
    assert ("fedavg-s", 1) not in planned(tiny, store)
    # Cut short, it is another run.
    assert ("fedavg-s", 1) in planned(tiny, store, rounds=1)


def test_only_the_seeds_that_were_asked_for(tiny: Experiment) -> None:
    found = missing([tiny], NOTHING, Here(), seeds=[2])
    assert {each.config.job.seed for each in found} == {2}


def test_where_to_run_is_added_to_the_settings(tiny: Experiment) -> None:
    here = Here(data_dir="images", precision="bf16", rounds=1, checkpoint_every=3)
    job = missing([tiny], NOTHING, here)[0].config.job
    assert (job.data_dir, job.precision, job.rounds, job.checkpoint_every) == (
        "images",
        "bf16",
        1,
        3,
    )


def test_an_estimate_grows_with_rounds_and_prefers_the_same_strategy(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    adaptive = tiny.parts[0].row("AdaptCL").config(1)
    barrier = tiny.parts[0].row("FedAVG-S").config(1)
    made = make_up(adaptive)
    slow = replace(made, summary=replace(made.summary, wall_time_s=300.0))
    device = made.provenance.device
    assert Estimator([made], device).seconds(adaptive) == 100.0
    assert Estimator([made], device).seconds(barrier) == 100.0
    longer = changed(tiny.parts[0].row("AdaptCL"), rounds=8)
    assert Estimator([made], device).seconds(longer) == 200.0
    assert Estimator([slow, make_up(barrier)], device).seconds(barrier) == 100.0
    assert Estimator([made], "another device").seconds(adaptive) is None


def test_a_run_on_fewer_samples_says_nothing_of_one_on_all(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    short = make_up(changed(row, samples=300))
    estimator = Estimator([short], short.provenance.device)
    assert estimator.seconds(row.config(1)) is None
    assert estimator.seconds(changed(row, seed=2, samples=300)) == 100.0


@pytest.mark.parametrize(
    ("estimate", "left", "limit", "begun"),
    [
        (100.0, 101.0, 600.0, True),
        (100.0, 99.0, 600.0, False),
        (None, 10.0, 600.0, True),
        (None, 0.0, 600.0, False),
        (700.0, 300.0, 600.0, True),
        (700.0, 299.0, 600.0, False),
        (100.0, math.inf, math.inf, True),
    ],
)
def test_nothing_is_begun_that_would_not_be_done_in_time(
    estimate: float | None, left: float, limit: float, begun: bool
) -> None:
    assert fits(estimate, left, limit) is begun
