"""Tables: the paper's numbers above ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adaptcl.config import Config
from paper.experiment import Experiment
from paper.identity import key
from paper.result import RunResult
from paper.store import Store
from paper.tables import NOT_RUN, lines, markdown

MakeUp = Callable[..., RunResult]
Changed = Callable[..., Config]


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
        make_up(adaptive.config(1), accuracy=0.80, round_s=30.0),
        make_up(adaptive.config(2), accuracy=0.90, round_s=30.0),
        make_up(barrier.config(1), accuracy=0.79),
        make_up(barrier.config(2), accuracy=0.89),
    )
    line = lines(part, store)[-1]
    assert line.source == "ours, 2 seeds"
    assert line.cells[0] == "84.79 ± 7.05"
    assert line.cells[2] == "2.0 ± 0.0"
    assert line.cells[3] == "+1.00 ± 0.00"


def test_seeds_that_are_missing_are_said_to_be(tiny: Experiment, make_up: MakeUp) -> None:
    part = tiny.parts[0]
    store = holding(make_up(part.row("AdaptCL").config(2)))
    line = lines(part, store)[-1]
    assert line.source == "ours, 1 of 2 seeds"
    assert line.cells[3:] == ("–", "–")


def test_markdown_has_as_many_cells_in_every_line(tiny: Experiment) -> None:
    counts = {line.count("|") for line in markdown(tiny.parts[0], holding()).splitlines()}
    assert len(counts) == 1


@pytest.mark.parametrize("sigma", [2.0, 20.0])
def test_one_run_behind_a_barrier_answers_for_every_environment(
    tiny: Experiment, make_up: MakeUp, changed: Changed, sigma: float
) -> None:
    row = tiny.parts[0].row("FedAVG-S")
    store = holding(make_up(changed(row, sigma=5.0)))
    found = store.find(changed(row, sigma=sigma))
    assert found is not None
    assert found.settings["sigma"] == sigma
