from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.advice import rounds_until
from adaptcl.report.verdicts.verdict import verdict

MakeRun = Callable[..., Run]


def said(runs: Sequence[Run]) -> list[str]:
    return verdict(compare(runs)).splitlines()


def short_run(make_run: MakeRun, name: str = "b", **settings: object) -> Run:
    """A run that is ahead, but ends before the baseline reaches what it ends with."""
    return make_run(
        name,
        strategy="adaptcl",
        rounds=10,
        round_s=50.0,
        final_accuracy=0.79,
        settings={"least_speed_up": 1.5, **settings},
    )


def test_equal_time_is_given_in_settings_to_copy(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg", rounds=10), short_run(make_run)]
    assert said(runs)[1:] == [
        "For equal time give all --until 16.6min --rounds 20 (in Python "
        'max_virtual_time="16.6min", rounds=20).'
    ]
    enough = make_run("c", strategy="adaptcl", rounds=20, round_s=50.0)
    assert len(said([runs[0], enough])) == 1


def test_what_ended_a_run_too_early_is_to_be_left_out(make_run: MakeRun) -> None:
    short = short_run(make_run)
    assert short.summary is not None
    ended = replace(short, summary=replace(short.summary, stopped_by="early_stopping"))
    runs = [make_run("a", strategy="fedavg", rounds=10), ended]
    assert said(runs)[-1].endswith("rounds=20), and leave out early_stopping.")


@pytest.mark.parametrize(
    ("settings", "rounds"), [({}, 12), ({"epochs": 2.0, "commit_epochs": 0.5}, 3)]
)
def test_rounds_are_those_that_fill_the_time_at_the_latest_pace(
    make_run: MakeRun, settings: dict[str, float], rounds: int
) -> None:
    run = make_run("a", rounds=4, settings=settings)
    slow_at_first = tuple(
        replace(each, virtual_time_s=each.virtual_time_s + 600) for each in run.rounds
    )
    # Four rounds in 1000 s, the last three in 100 s each: eight more take 800 s. Where workers
    # commit four times in a round, three rounds are twelve commits.
    assert rounds_until(replace(run, rounds=slow_at_first), 1800.0) == rounds


def test_where_adaptcl_is_behind_the_verdict_says_where_to_read_on(make_run: MakeRun) -> None:
    fedavg = make_run("a", strategy="fedavg", rounds=10)
    behind, ahead, other = (
        make_run(name, strategy=strategy, rounds=10, final_accuracy=end, settings=settings)
        for name, strategy, end, settings in (
            ("b", "adaptcl", 0.7, {"least_speed_up": 1.5}),
            ("c", "adaptcl", 0.9, {"least_speed_up": 1.5}),
            ("d", "heterofl", 0.7, {}),
        )
    )
    assert said([fedavg, behind])[-1] == (
        "What to try where AdaptCL is behind: docs/runs.md, “When AdaptCL ends behind”."
    )
    assert len(said([fedavg, ahead])) == len(said([fedavg, other])) == 1
