from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.verdict import verdict

MakeRun = Callable[..., Run]


def said(runs: Sequence[Run], **asked: Any) -> str:
    return verdict(compare(runs, **asked))


def ended_by(run: Run, why: str = "target_accuracy") -> Run:
    assert run.summary is not None
    return replace(run, summary=replace(run.summary, stopped_by=why))


def test_the_fastest_to_the_baselines_final_accuracy_is_named_with_its_speed_up(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, round_s=50.0),
        make_run("c", strategy="ssp-s", rounds=10, round_s=80.0),
    ]
    assert said(runs) == (
        "adaptcl was fastest to fedavg's final accuracy of 72.00 % (mean of its last 5 tests): "
        "6.7 min, 2.00× as fast as fedavg (one seed); at 6.7 min 16.00 points ahead of it."
    )


def test_a_baseline_that_nobody_beats_is_fastest_to_its_own_accuracy(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, final_accuracy=0.7),
    ]
    beginning = (
        "fedavg was fastest to its final accuracy of 72.00 % (mean of its last 5 tests): 13.3 min; "
    )
    assert said(runs) == f"{beginning}nothing else reached it."
    slower = make_run("c", strategy="ssp-s", rounds=10, round_s=200.0)
    assert said([*runs, slower]) == (
        f"{beginning}ssp-s came next, 0.50× as fast as fedavg (one seed)."
    )


def test_a_method_that_ended_before_it_got_there_may_have_been_ahead(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, round_s=50.0, final_accuracy=0.79),
    ]
    assert said(runs) == (
        "At 6.7 min adaptcl is 15.10 points ahead of fedavg. It did not reach fedavg's final "
        "accuracy of 72.00 % (mean of its last 5 tests), for which fedavg took 13.3 min.\n"
        "For equal time give all --until 16.6min --rounds 20 (in Python "
        'max_virtual_time="16.6min", rounds=20).'
    )


def test_a_method_that_had_the_time_and_did_not_get_there_needs_no_advice(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10),
        make_run("b", strategy="adaptcl", rounds=10, round_s=90.0, final_accuracy=0.79),
    ]
    assert said(runs, at_time_s=450.0).endswith("for which fedavg took 13.3 min.")


def test_an_accuracy_that_only_others_reach_has_no_speed_up(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="fedavg", final_accuracy=0.5),
        make_run("b", strategy="adaptcl", final_accuracy=0.8),
    ]
    assert said(runs, target=0.6) == (
        "adaptcl was fastest to 60 %: 3.3 min, which fedavg never reached; at 4.2 min 24.38 points "
        "ahead of it."
    )
    assert said(runs, target=0.9) == ("No run reached 90 %; adaptcl came nearest, with 65.00 %.")


def test_a_run_that_was_to_end_below_the_target_is_said_to_be_one(make_run: MakeRun) -> None:
    runs = [
        ended_by(make_run(name, strategy=name, rounds=10, settings={"target_accuracy": 70}))
        for name in ("fedavg", "adaptcl")
    ]
    assert said(runs, target=0.75).startswith(
        "No run reached 75 %; fedavg came nearest, with 72.00 %, and was to end there: its own "
        "target was 70.00 %."
    )


def test_runs_that_were_to_end_at_a_target_are_compared_by_the_time_to_it(
    make_run: MakeRun,
) -> None:
    goal = {"target_accuracy": 70}
    fedavg = ended_by(make_run("a", strategy="fedavg", rounds=10, settings=goal))
    adaptcl = ended_by(
        make_run(
            "b", strategy="adaptcl", rounds=10, round_s=50.0, final_accuracy=0.79, settings=goal
        )
    )
    # It ended a little lower than the baseline, which tells nothing: both were to end at 70 %.
    assert said([fedavg, adaptcl]).startswith("adaptcl was fastest to 70 %: 6.4 min, 1.94× as")
    other = make_run("c", strategy="heterofl", rounds=10)
    assert "fedavg's final accuracy" in said([fedavg, other])


def test_over_seeds_the_verdict_says_how_sure_it_is(make_run: MakeRun) -> None:
    runs = [make_run(f"a{s}", strategy="fedavg", seed=s, rounds=10) for s in (1, 2, 3)]
    sure, unsure = (
        [
            make_run(f"{name}{s}", strategy="adaptcl", seed=s, rounds=10, round_s=round_s)
            for s, round_s in enumerate(rounds_s, start=1)
        ]
        for name, rounds_s in (("b", (50.0, 48.0, 52.0)), ("c", (50.0, 90.0, 110.0)))
    )
    assert said([*runs, *sure]).endswith(
        "2.00× as fast as fedavg (95 % interval 1.81 to 2.21 over 3 seeds); at 6.4 min 15.39 "
        "points ahead of it."
    )
    assert said([*runs, *unsure]).endswith(
        "1.26× as fast as fedavg (95 % interval 0.46 to 3.50 over 3 seeds, so it may be luck); "
        "at 6.7 min 5.44 points ahead of it, which may be luck."
    )


def test_who_is_faster_beyond_luck_comes_before_who_may_be_lucky(make_run: MakeRun) -> None:
    def runs_of(strategy: str, *round_s: float) -> list[Run]:
        return [
            make_run(f"{strategy}{seed}", strategy=strategy, seed=seed, rounds=10, round_s=each)
            for seed, each in enumerate(round_s, start=1)
        ]

    sure, lucky = runs_of("adaptcl", 50.0, 48.0, 52.0), runs_of("heterofl", 5.0, 20.0, 90.0)
    found = said([*runs_of("fedavg", 100.0, 100.0, 100.0), *sure, *lucky])
    assert found.startswith("adaptcl was fastest to ")


def with_tests(run: Run, *values: float) -> Run:
    pairs = zip(run.rounds, values, strict=True)
    return replace(run, rounds=tuple(replace(each, accuracy=value) for each, value in pairs))


def test_who_is_best_at_equal_time_is_named_if_somebody_else_is_fastest(make_run: MakeRun) -> None:
    runs = [
        with_tests(make_run(name, strategy=name, rounds=10), *values)
        for name, values in {
            "fedavg": (*(0.1, 0.1, 0.1, 0.2, 0.3), *[0.5] * 5),
            "adaptcl": (0.3, *[0.6] * 9),
            "heterofl": (*(0.1, 0.1, 0.2, 0.5, 0.8), *[0.9] * 5),
        }.items()
    ]
    assert said(runs).endswith(
        "at 13.3 min 10.00 points ahead of it, and heterofl is best there, 40.00 points ahead."
    )


def test_a_single_seed_is_no_reason_to_count_as_lucky(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{seed}", strategy=name, rounds=10, round_s=s + seed, seed=seed)
        for name, s in (("fedavg", 100.0), ("fedbuff", 80.0))
        for seed in (1, 2, 3)
    ]
    runs.append(make_run("one", strategy="adaptcl", rounds=10, round_s=20.0, seed=1))
    assert said(runs).startswith("adaptcl was fastest to fedavg's final accuracy")


def test_a_baseline_that_nothing_is_compared_with_wins_nothing(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="fedavg", rounds=10, settings={"sigma": 2.0}),
        make_run("b", strategy="fedavg", rounds=10, settings={"sigma": 10.0}, final_accuracy=0.7),
        make_run("c", strategy="adaptcl", rounds=10, round_s=50.0, settings={"sigma": 10.0}),
    ]
    assert "fedavg (sigma=2) was fastest" not in said(runs)


def test_runs_that_read_equally_fast_are_level(make_run: MakeRun) -> None:
    fedavg, adaptcl, heterofl = (
        make_run(name, strategy=name, rounds=10, round_s=seconds)
        for name, seconds in (("fedavg", 100.0), ("adaptcl", 100.0), ("heterofl", 99.9))
    )
    target = "fedavg's final accuracy of 72.00 % (mean of its last 5 tests): 13.3 min"
    assert said([fedavg, adaptcl]) == f"fedavg and adaptcl are level to {target}."
    assert said([fedavg, heterofl]).startswith(f"heterofl and fedavg are level to {target}. At ")


def test_where_a_target_tells_nothing_the_verdict_says_so(make_run: MakeRun) -> None:
    fedavg, adaptcl = (
        make_run(name, strategy=name, rounds=10, round_s=seconds)
        for name, seconds in (("fedavg", 100.0), ("adaptcl", 50.0))
    )
    assert fedavg.summary is not None
    assert said([fedavg, adaptcl], target=0.3) == (
        "Who is faster cannot be told: 30 % was met at the first test of fedavg. At 6.7 min "
        "adaptcl is 16.00 points ahead of fedavg."
    )
    guessing = with_tests(fedavg, *[0.09] * 5, *[0.11] * 5)
    assert guessing.summary is not None
    by_class = replace(guessing.summary, accuracy_by_class=(0.1,) * 10)
    assert said([replace(guessing, summary=by_class), adaptcl]).startswith(
        "Who is faster cannot be told: fedavg's final accuracy of 11.00 % (mean of its last 5 "
        "tests) is hardly better than chance, 10.00 % of 10 classes. At "
    )
    one_class = replace(fedavg.summary, accuracy_by_class=(0.0, 1.0, None))
    assert said([replace(fedavg, summary=one_class), adaptcl]).startswith(
        "Who is faster cannot be told: fedavg's final accuracy of 72.00 % (mean of its last 5 "
        "tests) is that of one class given for everything (are the inputs normalised?). At "
    )


def test_of_whoever_misses_the_accuracy_with_a_seed_the_verdict_says_so(make_run: MakeRun) -> None:
    runs = [make_run(f"a{s}", strategy="fedavg", seed=s, rounds=10) for s in (1, 2, 3)]
    runs += [
        make_run(f"b{s}", strategy="adaptcl", seed=s, rounds=10, round_s=50.0, final_accuracy=end)
        for s, end in ((1, 0.8), (2, 0.8), (3, 0.7))
    ]
    assert said(runs) == (
        "At 6.7 min adaptcl is 13.00 points ahead of fedavg, but reached fedavg's final accuracy "
        "of 72.00 % (mean of its last 5 tests) with 2 of 3 seeds only."
    )
    low = [
        make_run(f"c{s}", strategy="fedavg", seed=s, rounds=10, final_accuracy=0.6)
        for s in (1, 2, 3)
    ]
    assert said([*low, *runs[3:]], target=0.7).startswith(
        "adaptcl was fastest to 70 %: 6.2 min, with 2 of 3 seeds only; at 6.7 min"
    )


def test_there_is_no_verdict_about_one_method_or_an_unfinished_baseline(make_run: MakeRun) -> None:
    alone = make_run("a", strategy="fedavg")
    assert said([alone]) == ""
    begun = replace(alone, summary=None)
    assert said([begun, make_run("b", strategy="adaptcl")]) == (
        "No verdict yet: fedavg, the baseline, is unfinished."
    )


def test_one_run_alone_has_no_verdict_whatever_is_asked_of_it(make_run: MakeRun) -> None:
    assert said([make_run("a")], target=0.5) == ""
