from __future__ import annotations

from collections.abc import Callable, Sequence

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.saved_run import Run
from adaptcl.report.verdicts.verdict import verdict

MakeRun = Callable[..., Run]


def said(runs: Sequence[Run]) -> list[str]:
    return verdict(compare(runs)).splitlines()


def test_each_condition_has_a_short_line(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{sigma}", strategy=name, rounds=10, round_s=s, settings={"sigma": sigma})
        for name, sigma, s in (
            *(("fedavg", 2.0, 100.0), ("adaptcl", 2.0, 50.0)),
            *(("fedavg", 5.0, 200.0), ("adaptcl", 5.0, 50.0)),
        )
    ]
    assert said(runs) == [
        "sigma=2: adaptcl +16.00 points at 6.7 min (early); adaptcl 2.00× as fast to 72.00 %",
        "sigma=5: adaptcl +24.00 points at 6.7 min (early); adaptcl 4.00× as fast to 72.00 %",
        "Each is compared with its own fedavg, at equal time and to fedavg's final accuracy (mean "
        "of its last 5 tests); one seed; early: a row had fewer than 5 tests by then.",
    ]


def test_over_conditions_the_advice_stands_once(make_run: MakeRun) -> None:
    runs = [
        make_run(
            f"{name}{sigma}",
            strategy=name,
            rounds=10,
            round_s=s,
            final_accuracy=end,
            settings={"sigma": sigma},
        )
        for sigma, base_s in ((2.0, 100.0), (5.0, 200.0))
        for name, s, end in (("fedavg", base_s, 0.8), ("adaptcl", 50.0, 0.79))
    ]
    lines = said(runs)
    assert (
        lines[0] == "sigma=2: adaptcl +15.10 points at 6.7 min (early); only fedavg reached 72.00 %"
    )
    assert all(len(line) <= 80 for line in lines[:2])
    assert lines[3:] == [
        "For equal time give all --until 33.3min --rounds 40 (in Python "
        'max_virtual_time="33.3min", rounds=40).'
    ]


def test_a_condition_without_a_finished_baseline_has_no_verdict_yet(make_run: MakeRun) -> None:
    runs = [
        make_run(
            f"{name}{sigma}",
            strategy=name,
            rounds=10,
            finished=(name, sigma) != ("fedavg", 5.0),
            settings={"sigma": sigma},
        )
        for sigma in (2.0, 5.0)
        for name in ("fedavg", "adaptcl")
    ]
    assert said(runs)[:2] == [
        "sigma=2: adaptcl level at 13.3 min; fedavg and adaptcl level to 72.00 %",
        "sigma=5: no verdict yet, fedavg, the baseline, is unfinished",
    ]


def test_over_seeds_a_line_says_what_may_be_luck(make_run: MakeRun) -> None:
    runs = [
        make_run(
            f"{name}{sigma}{seed}",
            strategy=name,
            seed=seed,
            rounds=10,
            round_s=s[seed],
            settings={"sigma": sigma},
        )
        for sigma in (2.0, 5.0)
        for name, s in (("fedavg", (100.0,) * 3), ("adaptcl", (50.0, 90.0, 110.0)))
        for seed in range(3)
    ]
    first, *_, last = said(runs)
    assert first == (
        "sigma=2: adaptcl +5.44 points at 6.7 min (early, may be luck); adaptcl 1.26× (0.46 to "
        "3.50) as fast to 72.00 %"
    )
    assert "; 95 % intervals over seeds; early: " in last


def test_a_line_says_who_missed_the_accuracy_with_a_seed(make_run: MakeRun) -> None:
    runs = [
        make_run(
            f"{name}{sigma}{seed}",
            strategy=name,
            seed=seed,
            rounds=10,
            round_s=round_s,
            final_accuracy=0.7 if (name, seed) == ("adaptcl", 2) else 0.8,
            settings={"sigma": sigma},
        )
        for sigma in (2.0, 5.0)
        for name, round_s in (("fedavg", 100.0), ("adaptcl", 50.0))
        for seed in range(3)
    ]
    assert said(runs)[0].endswith("fedavg first to 72.00 %, adaptcl next with 2 of 3 seeds only")
