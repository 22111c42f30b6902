"""Whether a claim holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paper.experiment import Experiment
from paper.outcomes import Verdict, judge_claims
from paper.result import RunResult
from paper.store import Store, run_key

MakeUp = Callable[..., RunResult]


def judged(
    tiny: Experiment, make_up: MakeUp, accuracy: float, round_s: float, seeds: tuple[int, ...]
) -> tuple[bool | None, str]:
    part = tiny.parts[0]
    row = part.row("AdaptCL")
    baseline = part.baseline_of(row)
    assert baseline is not None
    made: list[RunResult] = []
    for seed in seeds:
        made.append(make_up(row.config(seed), accuracy=accuracy, round_s=round_s))
        made.append(make_up(baseline.config(seed), accuracy=0.8))
    store = Store(Path("nowhere"), {run_key(each.settings): each for each in made})
    (verdict,) = judge_claims([tiny], store)
    return verdict.holds, verdict.words


def barrier_round_s(tiny: Experiment, make_up: MakeUp) -> float:
    config = tiny.parts[0].row("FedAVG-S").config(1)
    found = Store(Path(), {run_key(config.values()): make_up(config)}).find(config)
    assert found is not None
    return found.summary.virtual_time_s / found.summary.rounds


@pytest.mark.parametrize(
    ("accuracy", "slower", "holds"),
    [(0.8, 0.5, True), (0.792, 0.5, True), (0.78, 0.5, False), (0.8, 0.9, False)],
)
def test_a_claim_holds_if_both_its_halves_do(
    tiny: Experiment, make_up: MakeUp, accuracy: float, slower: float, holds: bool
) -> None:
    round_s = slower * barrier_round_s(tiny, make_up)
    found, words = judged(tiny, make_up, accuracy, round_s, (1, 2))
    assert found is holds
    assert words.startswith("holds" if holds else "does not hold")


def test_seeds_that_disagree_cannot_rule_out_less_than_the_claim_asks_for(tiny: Experiment) -> None:
    (claim,) = tiny.claims
    fast = (2 * claim.least_speed_up,) * 3
    unsure = Verdict(claim, (-2.16, 2.30, 0.0), fast)
    assert unsure.holds
    assert unsure.words.startswith(
        "holds on the mean, but 3 seeds cannot rule out -5.49: +0.05 points (95 % interval -5.49 "
        "to +5.59; by seed -2.16, +2.30, +0.00), "
    )
    sure = Verdict(claim, (1.0, 1.1, 0.9), fast)
    assert sure.words.startswith("holds: +1.00 points (95 % interval +0.75 to +1.25; by seed ")


def test_a_seed_that_never_gets_there_refutes_a_claim(tiny: Experiment) -> None:
    (claim,) = tiny.claims
    missed = Verdict(claim, (1.0, 1.0, 1.0), (2 * claim.least_speed_up,) * 2)
    assert missed.holds is False
    assert "on the mean of 2, 1 never reach the baseline's accuracy" in missed.words


def test_one_seed_has_no_interval(tiny: Experiment) -> None:
    (claim,) = tiny.claims
    assert Verdict(claim, (0.5,), (2.0,)).words.startswith(
        "not decided yet: +0.50 points (by seed +0.50), "
    )


def test_too_few_seeds_decide_nothing(tiny: Experiment, make_up: MakeUp) -> None:
    found, words = judged(tiny, make_up, 0.8, 1.0, (1,))
    assert found is None
    assert words.startswith("not decided yet")
    assert "1 of 2 seeds" in words


def test_mean_models_and_fresh_statistics_are_named_and_decide_nothing(
    tiny: Experiment, make_up: MakeUp
) -> None:
    _, words = judged(tiny, make_up, 0.792, 1.0, (1, 2))
    assert words.endswith("; mean models -0.80; statistics measured anew -0.40")


def test_no_runs_no_verdict(tiny: Experiment, make_up: MakeUp) -> None:
    assert judged(tiny, make_up, 0.8, 1.0, ()) == (None, "not run yet")
