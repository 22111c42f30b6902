from __future__ import annotations

from collections.abc import Callable

from adaptcl.report import Run
from adaptcl.report.comparison import groups

MakeRun = Callable[..., Run]


def test_without_seeds_every_run_is_a_group_of_its_own(make_run: MakeRun) -> None:
    runs = [make_run("a", seed=1), make_run("b", seed=2)]
    assert [group.label for group in groups(runs)] == ["fedavg-s (seed=1)", "fedavg-s (seed=2)"]


def test_runs_that_differ_only_in_their_seed_are_one_group(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{sigma}-{seed}", seed=seed, settings={"sigma": sigma})
        for sigma in (2.0, 5.0)
        for seed in (1, 2)
    ]
    told = groups(runs, over_seeds=True)
    assert [group.label for group in told] == ["fedavg-s (sigma=2)", "fedavg-s (sigma=5)"]
    assert [group.runs for group in told] == [tuple(runs[:2]), tuple(runs[2:])]
    assert not any(group.repeats_a_seed for group in told)


def test_unfinished_runs_are_in_no_group_unless_there_is_nothing_else(make_run: MakeRun) -> None:
    done, cut = make_run("a", seed=1), make_run("b", seed=2, finished=False)
    (group,) = groups([cut, done], over_seeds=True)
    assert group.runs == (done,)
    (group,) = groups([cut], over_seeds=True)
    assert group.runs == (cut,)


def test_a_run_done_again_repeats_its_seed(make_run: MakeRun) -> None:
    (group,) = groups([make_run("a"), make_run("b")], over_seeds=True)
    assert group.repeats_a_seed
