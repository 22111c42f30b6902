from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from adaptcl.report import Run
from adaptcl.report.comparison import choose_baseline, group_runs, interval, t_quantile

MakeRun = Callable[..., Run]


def test_without_seeds_every_run_is_a_group_of_its_own(make_run: MakeRun) -> None:
    runs = [make_run("a", seed=1), make_run("b", seed=2)]
    assert [group.label for group in group_runs(runs)] == ["fedavg-s (seed=1)", "fedavg-s (seed=2)"]


def test_runs_that_differ_only_in_their_seed_are_one_group(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{sigma}-{seed}", seed=seed, settings={"sigma": sigma})
        for sigma in (2.0, 5.0)
        for seed in (1, 2)
    ]
    found = group_runs(runs, over_seeds=True)
    assert [group.label for group in found] == ["fedavg-s (sigma=2)", "fedavg-s (sigma=5)"]
    assert [group.runs for group in found] == [tuple(runs[:2]), tuple(runs[2:])]
    assert not any(group.repeats_a_seed for group in found)


def test_unfinished_runs_are_in_no_group_unless_there_is_nothing_else(make_run: MakeRun) -> None:
    done, cut = make_run("a", seed=1), make_run("b", seed=2, finished=False)
    (group,) = group_runs([cut, done], over_seeds=True)
    assert group.runs == (done,)
    (group,) = group_runs([cut], over_seeds=True)
    assert group.runs == (cut,)


def test_a_run_done_again_repeats_its_seed(make_run: MakeRun) -> None:
    (group,) = group_runs([make_run("a"), make_run("b")], over_seeds=True)
    assert group.repeats_a_seed


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (("adaptcl", "fedavg-s", "fedavg"), 1),
        (("fedavg", "adaptcl"), 0),
        (("adaptcl", "fedavg"), 1),
        (("heterofl", "adaptcl", "ssp-s"), 2),
        (("mine", "adaptcl", "adaptcl"), 1),
        (("ssp-s", "fedavg-s", "fedavg-s"), 1),
    ],
)
def test_the_baseline_is_the_first_fedavg_s_or_else_the_first_listed_strategy(
    make_run: MakeRun, strategies: tuple[str, ...], expected: int
) -> None:
    runs = [make_run(str(place), strategy=name) for place, name in enumerate(strategies)]
    assert choose_baseline(runs) is runs[expected]


def below(quantile: float, degrees: int) -> float:
    """The share of the t distribution below a value, by summing its density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    steps = 5_000
    width = quantile / steps
    middles = ((step + 0.5) * width for step in range(steps))
    power = -(degrees + 1) / 2
    return 0.5 + width * sum(scale * math.pow(1 + x * x / degrees, power) for x in middles)


def test_the_quantile_leaves_a_fortieth_above_it() -> None:
    for degrees in (*range(1, 13), 30, 100):
        assert below(t_quantile(degrees), degrees) == pytest.approx(0.975, abs=2e-5)


def test_more_seeds_make_it_smaller() -> None:
    quantiles = [t_quantile(degrees) for degrees in range(1, 200)]
    assert all(more < fewer for fewer, more in pairwise(quantiles))


def test_three_seeds_that_disagree_say_little() -> None:
    found = interval([-2.16, 2.30, 0.0])
    assert found is not None
    assert found == pytest.approx((-5.49, 5.59), abs=0.02)


def test_equal_values_leave_no_doubt_and_one_says_nothing() -> None:
    assert interval([0.5, 0.5]) == (0.5, 0.5)
    assert interval([0.5]) is None
    assert interval([]) is None
