"""Tables: the paper's numbers above ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adaptcl.experiments.experiment import Experiment
from adaptcl.experiments.identity import key
from adaptcl.experiments.outcome import outcome
from adaptcl.experiments.reading import parse
from adaptcl.experiments.result import RunResult
from adaptcl.experiments.store import Store
from adaptcl.experiments.tables import NOT_RUN, lines, markdown

MakeUp = Callable[..., RunResult]


def holding(*results: RunResult) -> Store:
    return Store(Path("nowhere"), {key(each.settings): each for each in results})


def test_without_runs_the_paper_stands_alone(tiny: Experiment) -> None:
    found = lines(tiny.parts[0], holding())
    assert [(line.label, line.source) for line in found] == [
        ("FedAVG-S", "paper"),
        ("", f"ours, {NOT_RUN}"),
        ("AdaptCL", "paper"),
        ("", f"ours, {NOT_RUN}"),
    ]
    assert found[0].cells == ("87.18", "–", "279.4", "–", "–")
    assert set(found[1].cells) == {""}


def test_seeds_make_a_mean_with_its_spread_and_differences_are_taken_seed_by_seed(
    tiny: Experiment, make_up: MakeUp
) -> None:
    part = tiny.parts[0]
    adaptive, barrier = part.row("AdaptCL"), part.against(part.row("AdaptCL"))
    assert barrier is not None
    store = holding(
        make_up(adaptive.config({}, 1), accuracy=0.80, round_s=30.0),
        make_up(adaptive.config({}, 2), accuracy=0.90, round_s=30.0),
        make_up(barrier.config({}, 1), accuracy=0.79),
        make_up(barrier.config({}, 2), accuracy=0.89),
    )
    line = lines(part, store)[-1]
    assert line.source == "ours, 2 seeds"
    assert line.cells[0] == "84.79 ± 7.05"
    assert line.cells[2] == "2.0 ± 0.0"
    assert line.cells[3] == "+1.00 ± 0.00"


def test_seeds_that_are_missing_are_said_to_be(tiny: Experiment, make_up: MakeUp) -> None:
    part = tiny.parts[0]
    store = holding(make_up(part.row("AdaptCL").config({}, 2)))
    line = lines(part, store)[-1]
    assert line.source == "ours, 1 of 2 seeds"
    assert line.cells[3:] == ("–", "–")


def test_of_several_variants_the_most_accurate_is_shown(make_up: MakeUp, tiny_text: str) -> None:
    text = tiny_text.replace('label = "FedAVG-S"\nstrategy = "fedavg-s"', _SSP, 1)
    part = parse("tiny", text).parts[0]
    row = part.row("SSP-S")
    worse, better = (
        make_up(row.config(variant, 1), accuracy=accuracy)
        for variant, accuracy in zip(row.variants, (0.7, 0.8), strict=True)
    )
    assert lines(part, holding(worse, better))[1].source == (
        "ours, 1 seed (staleness threshold 4, best of 2)"
    )
    assert outcome(part, row, holding(worse)).variant == {"staleness_threshold": 2}


_SSP = """label = "SSP-S"
strategy = "ssp-s"
best_of = [{ staleness_threshold = 2 }, { staleness_threshold = 4 }]"""


def test_markdown_has_as_many_cells_in_every_line(tiny: Experiment) -> None:
    counts = {line.count("|") for line in markdown(tiny.parts[0], holding()).splitlines()}
    assert len(counts) == 1


@pytest.mark.parametrize("sigma", [2.0, 20.0])
def test_one_run_behind_a_barrier_answers_for_every_environment(
    tiny: Experiment, make_up: MakeUp, sigma: float
) -> None:
    row = tiny.parts[0].row("FedAVG-S")
    store = holding(make_up(row.config({"sigma": 5.0}, 1)))
    found = store.find(row.config({"sigma": sigma}, 1))
    assert found is not None
    assert found.settings["sigma"] == sigma
