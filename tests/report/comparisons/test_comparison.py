from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import adaptcl
from adaptcl.errors import SettingError
from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.baselines import baselines_of
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.comparisons.groups import group_runs
from adaptcl.report.comparisons.labels import words_of
from adaptcl.report.saved_run import Run

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


def test_how_a_run_was_computed_makes_no_other_method_of_it(make_run: MakeRun) -> None:
    how = (
        {"threads": 1, "checkpoint_every": 1, "data_dir": "/mine", "device": "cpu"},
        {"threads": 2, "checkpoint_every": 5, "data_dir": "/yours", "device": "cuda"},
    )
    runs = [make_run(f"run-{seed}", seed=seed, settings=how[seed]) for seed in (0, 1)]
    (group,) = group_runs(runs, over_seeds=True)
    assert group.label == "fedavg-s"


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
        (("adaptcl", "fedavg-s", "fedavg"), 2),
        (("adaptcl", "fedavg-s"), 1),
        (("heterofl", "adaptcl", "ssp-s"), 2),
        (("mine", "adaptcl", "adaptcl"), 1),
        (("ssp-s", "fedavg-s", "fedavg-s"), 1),
    ],
)
def test_the_baseline_is_fedavg_else_fedavg_s_else_the_first_listed_strategy(
    make_run: MakeRun, strategies: tuple[str, ...], expected: int
) -> None:
    runs = [make_run(str(place), strategy=name) for place, name in enumerate(strategies)]
    groups = group_runs(runs)
    assert baselines_of(groups) == [groups[expected]] * len(groups)


def test_of_several_rows_of_the_baselines_strategy_the_one_that_ends_best_is_the_baseline(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run(f"{name}{rate}", strategy=name, final_accuracy=end, settings={"lr": rate})
        for name, rate, end in (("fedavg", 0.1, 0.2), ("fedavg", 0.2, 0.9), ("adaptcl", 0.1, 0.8))
    ]
    groups = group_runs(runs)
    assert baselines_of(groups) == baselines_of(groups, "fedavg") == [groups[1]] * 3
    assert baselines_of(groups, groups[0].label) == [groups[0]] * 3
    begun = group_runs([runs[0], replace(runs[1], summary=None)])
    assert baselines_of(begun) == [begun[0]] * 2


def test_under_several_conditions_each_run_is_compared_with_the_baseline_of_its_own(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run(f"{name}-{sigma}", strategy=name, round_s=seconds, settings={"sigma": sigma})
        for sigma, name, seconds in [
            *((2.0, "fedavg", 100.0), (2.0, "adaptcl", 80.0)),
            *((5.0, "fedavg", 300.0), (5.0, "adaptcl", 100.0)),
            (9.0, "adaptcl", 50.0),  # nothing else has its conditions
        ]
    ]
    found = compare(runs)
    assert [row.baseline.label for row in found.rows if row.baseline] == [
        *["fedavg (sigma=2)"] * 3,
        *["fedavg (sigma=5)"] * 2,
    ]
    assert [row.speed_up for row in found.rows] == pytest.approx([1, 1.25, 2, 1, 3])
    assert found.target == "fedavg's final accuracy"
    by_name = compare(runs, baseline="fedavg (sigma=5)")
    assert {row.baseline.label for row in by_name.rows if row.baseline} == {"fedavg (sigma=5)"}


def test_each_of_several_conditions_has_an_equal_time_of_its_own(make_run: MakeRun) -> None:
    runs = [
        rising(make_run(f"{name}{s}", strategy=name, settings={"sigma": s}), round_s, rate)
        for s, name, round_s, rate in (
            *((2.0, "fedavg", 10, 0.001), (2.0, "adaptcl", 5, 0.002)),
            *((20.0, "fedavg", 100, 0.0001), (20.0, "adaptcl", 20, 0.0005)),
        )
    ]
    found = compare(runs)
    assert [row.at_time_s for row in found.rows] == pytest.approx([40, 40, 160, 160])
    values = [row.outcomes[0].value_at_time for row in found.rows]
    assert values == pytest.approx([0.04, 0.08, 0.016, 0.08])
    assert (found.at_time_s, found.when) == (None, "equal time")
    asked = compare(runs, at_time_s=160.0)
    assert (asked.at_time_s, asked.rows[0].outcomes[0].value_at_time) == (160.0, None)


def test_runs_of_one_method_under_several_conditions_have_one_baseline(make_run: MakeRun) -> None:
    runs = [make_run(str(sigma), settings={"sigma": sigma}) for sigma in (2.0, 5.0)]
    assert [row.group.label for row in compare(runs).baselines] == ["fedavg-s (sigma=2)"]


def test_the_baseline_can_be_named_by_strategy_label_or_folder(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg")]
    runs += [make_run(f"b{s}", strategy="adaptcl", settings={"sigma": s}) for s in (2.0, 5.0)]
    groups = group_runs(runs)
    for name, place in (("adaptcl", 1), ("adaptcl (sigma=5)", 2), (str(runs[2].folder), 2)):
        assert baselines_of(groups, name) == [groups[place]] * 3
    with pytest.raises(SettingError, match="no run 'ssp-s' to compare with; there are fedavg, ada"):
        baselines_of(groups, "ssp-s")


def sweep_over_two_partitions(make_run: MakeRun) -> list[Run]:
    """Methods in two partitions, FedAVG with two codecs; with int8 it ends best."""
    return [
        make_run(
            f"{name}-{codec}-{partition}",
            strategy=name,
            final_accuracy=end,
            settings={"partition": partition, "codec": codec},
        )
        for partition in ("iid", "dirichlet")
        for name, codec, end in (
            *(("fedavg", "plain", 0.7), ("fedavg", "int8", 0.9)),
            *(("fedbuff", "plain", 0.8), ("adaptcl", "plain", 0.8)),
        )
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedbuff", "fedbuff (partition={}, codec=plain)"),
        ("codec=plain", "fedavg (partition={}, codec=plain)"),
        ("fedavg (codec=plain)", "fedavg (partition={}, codec=plain)"),
        ("fedavg (codec=plain, partition=iid)", "fedavg (partition=iid, codec=plain)"),
    ],
)
def test_of_a_named_baseline_each_run_is_compared_with_the_one_of_its_own_conditions(
    make_run: MakeRun, name: str, expected: str
) -> None:
    found = compare(sweep_over_two_partitions(make_run), baseline=name)
    for row in found.rows:
        assert row.baseline is not None
        under = expected.format(row.group.first.config["partition"])
        assert words_of(row.baseline.label) == words_of(under)


def test_several_baselines_are_called_what_their_labels_have_in_common(make_run: MakeRun) -> None:
    runs = sweep_over_two_partitions(make_run)
    assert compare(runs).reference == "fedavg (codec=int8)"
    assert compare(runs, baseline="codec=plain").reference == "fedavg (codec=plain)"


def with_tests(run: Run, times: Sequence[float], accuracies: Sequence[float]) -> Run:
    rounds = tuple(
        RoundRecord(number, time, accuracy, 0.5, ())
        for number, (time, accuracy) in enumerate(zip(times, accuracies, strict=True), start=1)
    )
    return replace(run, rounds=rounds)


def rising(run: Run, round_s: float, rate: float, *, rounds: int = 10) -> Run:
    """A run whose accuracy rises by a rate a second."""
    times = [round_s * number for number in range(1, rounds + 1)]
    return with_tests(run, times, [rate * time for time in times])


def test_accuracies_are_compared_where_the_first_curve_of_a_finished_run_ends(
    make_run: MakeRun,
) -> None:
    long = rising(make_run("a", strategy="fedavg"), 20, 0.002)
    short = rising(make_run("b", strategy="adaptcl"), 10, 0.004)
    begun = replace(rising(make_run("c", strategy="ssp-s"), 1, 0.001), summary=None)
    found = compare([long, short, begun])
    assert found.at_time_s == 80  # the mean time of the last five tests of the short run
    fedavg, adaptcl, unfinished = (row.outcomes[0] for row in found.rows)
    assert fedavg.value_at_time == pytest.approx(0.16)
    assert adaptcl.value_at_time == adaptcl.late_value == pytest.approx(0.32)
    assert adaptcl.gain == pytest.approx(0.16)
    assert unfinished.value_at_time is None
    assert compare([long, short], at_time_s=60).rows[1].outcomes[0].gain == pytest.approx(0.12)


def test_of_runs_that_end_together_none_is_compared_at_an_earlier_state_than_another(
    make_run: MakeRun,
) -> None:
    long_rounds = rising(make_run("a", strategy="fedavg"), 50, 0.002, rounds=4)
    short_rounds = rising(make_run("b", strategy="adaptcl"), 5, 0.002, rounds=40)
    found = compare([long_rounds, short_rounds])
    assert found.at_time_s == 125
    assert [row.outcomes[0].value_at_time for row in found.rows] == pytest.approx([0.25, 0.25])
    at_the_end = compare([long_rounds, short_rounds], at_time_s=200.0)
    assert [row.outcomes[0].flat_s for row in at_the_end.rows] == pytest.approx([75, 10])


@pytest.mark.parametrize("time_s", [0.0, -1.0, 206.0, math.nan])
def test_no_time_after_the_longest_run_can_be_asked_for(make_run: MakeRun, time_s: float) -> None:
    runs = [rising(make_run(n, strategy=n), 20, 0.001) for n in ("fedavg", "adaptcl")]
    with pytest.raises(SettingError, match=r"above 0 and at most 3\.3 min, where the longest"):
        compare(runs, at_time_s=time_s)


def test_the_speed_up_is_by_the_time_to_what_the_baseline_ends_with(make_run: MakeRun) -> None:
    fedavg = rising(make_run("a", strategy="fedavg"), 20, 0.002)  # 0.32 on the mean at 160 s
    faster = rising(make_run("b", strategy="adaptcl"), 15, 0.004)
    worse = rising(make_run("c", strategy="ssp-s"), 10, 0.002)
    base, first, never = (row.outcomes[0] for row in compare([fedavg, faster, worse]).rows)
    assert base.target_value == first.target_value == pytest.approx(0.32)
    assert (base.target_time_s, base.speed_up) == pytest.approx((160, 1.0))
    assert (first.target_time_s, first.speed_up) == pytest.approx((80, 2.0))
    assert (never.target_time_s, never.speed_up) == (None, None)
    asked = compare([fedavg, faster, worse], target=0.1)
    assert [row.speed_ups[0] for row in asked.rows] == pytest.approx([1.0, 2.0, 1.0])


def test_each_seed_is_compared_with_the_same_seed_of_the_baseline(make_run: MakeRun) -> None:
    runs = [
        rising(make_run(f"a{seed}", strategy="fedavg", seed=seed), 20, seed / 1000)
        for seed in (1, 2)
    ]
    runs += [
        rising(make_run(f"b{seed}", strategy="adaptcl", seed=seed), 20, 2 * seed / 1000)
        for seed in (1, 2, 9)
    ]
    runs += [rising(make_run("c9", strategy="ssp-s", seed=9), 20, 0.003)]
    _, adaptcl, stranger = compare(runs).rows
    assert adaptcl.speed_ups == pytest.approx([2.0, 2.0])  # seed 9 has no pair
    assert adaptcl.gains == pytest.approx([0.16, 0.32])  # means of the last five tests, at 160 s
    # The baseline lacks its only seed: the mean of 0.24 stands in, which one of the baseline's runs
    # reaches, after 120 s.
    assert stranger.speed_ups == pytest.approx([120 / 80])
    assert stranger.gains == []


def test_several_seeds_are_one_row_unless_the_user_wants_each(make_run: MakeRun) -> None:
    runs = [make_run(str(seed), seed=seed) for seed in (1, 2)]
    assert len(compare(runs).rows) == 1
    assert len(compare(runs, over_seeds=False).rows) == 2


def test_an_unfinished_baseline_has_no_final_accuracy_to_reach(make_run: MakeRun) -> None:
    begun = replace(rising(make_run("a", strategy="fedavg"), 20, 0.002), summary=None)
    runs = [begun, rising(make_run("b", strategy="adaptcl"), 20, 0.002)]
    assert compare(runs).target_value is None
    assert compare(runs).rows[1].outcomes[0].target_time_s is None
    assert compare(runs, target=0.2).rows[1].speed_ups == pytest.approx([1.0])


def test_a_target_of_0_is_a_target(make_run: MakeRun) -> None:
    runs = [  # as of R², which begins below 0
        with_tests(make_run(name, strategy=name), [10.0, 20.0, 30.0], [-0.2, rise, 0.5])
        for name, rise in (("fedavg", 0.1), ("adaptcl", 0.4))
    ]
    found = compare(runs, target=0.0)
    assert {each.target_value for row in found.rows for each in row.outcomes} == {0.0}


def test_what_is_asked_of_one_run_alone_is_answered_or_refused(make_run: MakeRun) -> None:
    runs = [rising(make_run("a"), 10, 0.002)]
    (outcome,) = compare(runs, at_time_s=50.0, target=0.1).rows[0].outcomes
    assert (outcome.value_at_time, outcome.target_time_s) == pytest.approx((0.1, 50.0))
    with pytest.raises(SettingError, match="no run 'ssp-s' to compare with"):
        compare(runs, baseline="ssp-s")
    with pytest.raises(SettingError, match="must be above 0"):
        compare(runs, at_time_s=-1.0)


def test_a_comparison_is_shown_in_few_words(make_run: MakeRun) -> None:
    runs = [make_run(name, strategy=name, rounds=50) for name in ("fedavg", "adaptcl")]
    shown = adaptcl.compare([run.folder for run in runs])
    assert repr(shown) == str(shown)
    assert len(repr(shown)) < 5_000
    assert len(repr(compare(runs))) < 1_000
    assert len(repr(shown.rows[0])) < 200
