from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report.comparisons.labels import (
    distinct_labels,
    job_differences,
    setting_text,
    shared_differences,
)
from adaptcl.report.saved_run import Run
from adaptcl.settings import declared

MakeRun = Callable[..., Run]


def labels_of(*settings: Mapping[str, Any]) -> list[str]:
    """What runs of `fedavg-s` are called, each with some settings of its own."""
    runs = [
        Run(Path(str(place)), "fedavg-s", {"strategy": "fedavg-s", **each}, (), None)
        for place, each in enumerate(settings)
    ]
    return [run.label.removeprefix("fedavg-s ") for run in distinct_labels(runs)]


def test_labels_that_are_distinct_stay_as_they_are(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg", seed=1), make_run("b", strategy="adaptcl", seed=2)]
    assert [run.label for run in distinct_labels(runs)] == ["fedavg", "adaptcl"]


def test_runs_of_one_strategy_are_set_apart_by_what_differs(make_run: MakeRun) -> None:
    runs = [
        make_run("a", strategy="adaptcl", settings={"sigma": 2.0}),
        make_run("b", strategy="fedavg"),
        make_run("c", strategy="adaptcl", settings={"sigma": 5.0}),
    ]
    labels = [run.label for run in distinct_labels(runs)]
    assert labels == ["adaptcl (sigma=2)", "fedavg", "adaptcl (sigma=5)"]


def test_the_seed_is_named_only_where_nothing_else_tells_runs_apart(make_run: MakeRun) -> None:
    by_both = [
        make_run(f"{sigma}-{seed}", seed=seed, settings={"sigma": sigma})
        for sigma in (2.0, 5.0)
        for seed in (1, 2)
    ]
    assert [run.label for run in distinct_labels(by_both)] == [
        "fedavg-s (sigma=2, seed=1)",
        "fedavg-s (sigma=2, seed=2)",
        "fedavg-s (sigma=5, seed=1)",
        "fedavg-s (sigma=5, seed=2)",
    ]
    by_sigma = [by_both[0], by_both[3]]
    labels = [run.label for run in distinct_labels(by_sigma)]
    assert labels == ["fedavg-s (sigma=2)", "fedavg-s (sigma=5)"]


def test_a_setting_left_out_reads_none(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", settings={"pruning": "cig"})]
    labels = [run.label for run in distinct_labels(runs)]
    assert labels == ["fedavg-s (pruning=none)", "fedavg-s (pruning=cig)"]


def test_runs_with_equal_settings_are_set_apart_by_their_folders(make_run: MakeRun) -> None:
    same_name = [make_run("x/run"), make_run("y/run")]
    labels = [run.label for run in distinct_labels([make_run("a"), make_run("b")])]
    assert labels == ["fedavg-s (a)", "fedavg-s (b)"]
    paths = [run.label for run in distinct_labels(same_name)]
    assert paths == [f"fedavg-s ({run.folder.as_posix()})" for run in same_name]


def test_no_two_labels_are_ever_equal(make_run: MakeRun) -> None:
    run = make_run("a")
    awkward = replace(run, label="fedavg-s (sigma=2)")
    others = [make_run("b", settings={"sigma": 2.0}), make_run("c", settings={"sigma": 5.0})]
    labels = [each.label for each in distinct_labels([run, run, awkward, *others])]
    assert len(set(labels)) == 5


def test_every_setting_that_differs_is_named_if_they_are_few() -> None:
    first = {"epochs": 1.0, "sigma": 2.0, "augmentation": False}
    assert labels_of(first, {"epochs": 2.0, "sigma": 5.0, "augmentation": True}) == [
        "(epochs=1, sigma=2, augmentation=false)",
        "(epochs=2, sigma=5, augmentation=true)",
    ]


def test_of_many_differences_the_first_few_are_named_and_the_folder_where_these_repeat() -> None:
    names = ("epochs", "batch_size", "samples", "jitter")
    one, other = (dict.fromkeys(names, value) for value in (1, 2))
    first = "epochs={0}, batch_size={0}, samples={0}"
    assert labels_of(one, other) == [f"({first.format(value)})" for value in (1, 2)]
    assert labels_of(one, other, {**other, "jitter": 3}) == [
        f"({first.format(1)})",
        f"({first.format(2)}, in 1)",
        f"({first.format(2)}, in 2)",
    ]


def test_a_setting_without_effect_is_not_named() -> None:
    runs = [{"sigma": 1.0 + n, "bandwidths": [1.0, 2.0], "epochs": n} for n in (1, 2)]
    assert labels_of(*runs) == ["(epochs=1)", "(epochs=2)"]


def test_what_another_setting_replaces_is_named_only_where_it_counts() -> None:
    replaced = {"sigma": 3.0, "bandwidths": [1, 2, 3, 4], "speeds": []}
    plain: dict[str, Any] = {"sigma": 2.0, "bandwidths": [], "speeds": []}
    assert labels_of(plain, replaced) == ["(bandwidths=none)", "(bandwidths=1,2,3,4)"]
    assert labels_of(plain | {"sigma": 5.0}, plain, replaced) == [
        "(sigma=5)",
        "(sigma=2)",
        "(bandwidths=1,2,3,4)",
    ]
    assert labels_of(replaced, plain | {"speeds": [1.0, 0.5]}) == [
        "(bandwidths=1,2,3,4)",
        "(speeds=1,0.5)",
    ]


def test_settings_of_the_simulation_say_nothing_about_a_run_across_a_network(
    make_run: MakeRun,
) -> None:
    runs = [make_run(n, seed=s, settings={"sigma": float(s)}) for n, s in (("a", 1), ("b", 2))]
    runs = [replace(run, networked=True) for run in runs]
    assert [run.label for run in distinct_labels(runs)] == [
        "fedavg-s (seed=1)",
        "fedavg-s (seed=2)",
    ]


def test_where_and_how_fast_a_run_was_computed_is_named_last() -> None:
    runs = [{"device": "cpu", "threads": 1, "jitter": 0.1}, {"device": "cuda", "threads": 4}]
    assert labels_of(*runs) == ["(jitter=0.1)", "(jitter=none)"]
    assert labels_of({"device": "cpu"}, {"device": "cuda"}) == ["(device=cpu)", "(device=cuda)"]


def test_of_many_links_the_first_are_named() -> None:
    links = [f"{10 + n}/{n}" for n in range(1, 9)]
    assert labels_of({"links": links}, {"links": links[::-1]}) == [
        "(links=11/1,12/2,13/3,14/4,…)",
        "(links=18/8,17/7,16/6,15/5,…)",
    ]


def test_long_values_are_cut_where_they_tell_least() -> None:
    rates = [[0.5, 0.25, 0.0], [0.125, 0.0, 0.0], [0.5, 0.5, 0.0]]
    assert labels_of(
        {"data": "/a/very/long/way/to/the/data/scans.npz"},
        {"data": "package.module.submodule:load_data"},
        {"data": "digits", "pruned_rates": rates},
    ) == [
        "(data=…y/to/the/data/scans.npz)",
        "(data=package.module.submodul…)",
        "(data=digits, pruned_rates=0.5,0.25,0;0.125,0,…)",
    ]


def test_only_runs_with_equal_settings_are_set_apart_by_their_folders() -> None:
    assert labels_of({"sigma": 2.0}, {"sigma": 2.0}, {"sigma": 5.0}) == [
        "(sigma=2, in 0)",
        "(sigma=2, in 1)",
        "(sigma=5)",
    ]


def test_runs_of_different_strategies_are_called_by_what_else_differs(make_run: MakeRun) -> None:
    one = {"sigma": 2.0, "learning_rate": 0.1, "jitter": 0.0}
    other = {"sigma": 10.0, "learning_rate": 0.1, "jitter": 0.0}
    runs = [
        make_run("a", settings=one),
        make_run("b", strategy="adaptcl", seed=2, settings=other),
        make_run("c", strategy="adaptcl", seed=3, settings=other),
    ]
    labels = [run.label for run in distinct_labels(runs)]
    assert labels == [
        "fedavg-s (sigma=2)",
        "adaptcl (sigma=10, seed=2)",
        "adaptcl (sigma=10, seed=3)",
    ]
    again = distinct_labels(distinct_labels(runs))
    assert [run.label for run in again] == labels


def test_of_many_differences_between_strategies_the_first_few_are_named(make_run: MakeRun) -> None:
    names = ("epochs", "batch_size", "sigma", "jitter")
    runs = [
        make_run(name, strategy=name, settings=dict.fromkeys(names, value))
        for name, value in (("fedavg-s", 1), ("adaptcl", 2))
    ]
    assert [run.label for run in distinct_labels(runs)] == [
        "fedavg-s (epochs=1, batch_size=1, sigma=1, …)",
        "adaptcl (epochs=2, batch_size=2, sigma=2, …)",
    ]


def test_settings_stand_in_one_order_in_the_labels_of_all_strategies(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{n}", strategy=name, settings={"partition": partition, "codec": codec})
        for n, (name, partition, codec) in enumerate(
            (
                *(("fedavg", "iid", "plain"), ("fedavg", "dirichlet", "int8")),
                *(("heterofl", "iid", "plain"), ("heterofl", "dirichlet", "plain")),
            )
        )
    ]
    assert [run.label for run in distinct_labels(runs)] == [
        "fedavg (partition=iid, codec=plain)",
        "fedavg (partition=dirichlet, codec=int8)",
        "heterofl (partition=iid, codec=plain)",
        "heterofl (partition=dirichlet, codec=plain)",
    ]


def test_a_label_of_ones_own_choice_stays(make_run: MakeRun) -> None:
    runs = [
        replace(make_run("a", settings={"sigma": 2.0}), label="ours"),
        make_run("b", settings={"sigma": 5.0}),
    ]
    assert [run.label for run in distinct_labels(runs)] == ["ours", "fedavg-s (sigma=5)"]


def a_run(**settings: Any) -> Run:
    return Run(Path("nowhere"), "a", {"strategy": "adaptcl", **settings}, (), None)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("sigma", {"sigma": 2.0, "bandwidths": []}, "2"),
        ("sigma", {"sigma": 2.0, "bandwidths": [1.0, 2.0]}, None),
        ("bandwidths", {"bandwidths": [1.0, 2.5]}, "1,2.5"),
        ("bandwidths", {"bandwidths": []}, "none"),
        ("beta", {"strategy": "fedavg-s", "beta": 0.5}, None),
        ("grow", {"grow": True}, "true"),
    ],
)
def test_a_setting_has_a_text_unless_it_has_no_effect(
    name: str, settings: dict[str, Any], text: str | None
) -> None:
    assert setting_text(a_run(**settings), name) == text


_PROFILED: dict[str, Any] = {"train_time": 1.0}


def two_runs(one: dict[str, Any], other: dict[str, Any]) -> list[Run]:
    return [
        a_run(**{**_PROFILED, **one, "strategy": "fedavg-s"}),
        a_run(**{**_PROFILED, **other, "strategy": "adaptcl"}),
    ]


def test_whatever_sets_the_clock_makes_another_job() -> None:
    for name in (each.name for each in declared(EnvironmentSettings)):
        assert job_differences(two_runs({name: 0.25}, {name: 0.5})) == [name]


def test_whatever_sets_the_work_makes_another_job() -> None:
    values = {"model": "small", "data": "fashion", "partition": "by-label"}
    for name in (*values, "rounds", "workers", "samples", "epochs", "batch_size"):
        assert job_differences(two_runs({name: 3}, {name: values.get(name, 5)})) == [name]


def test_what_belongs_to_a_method_does_not() -> None:
    for name in ("codec", "fixed", "averaging", "learning_rate", "strength"):
        runs = two_runs({name: 0.1}, {name: 0.2})
        assert job_differences(runs) == []
        assert shared_differences(runs) == [name]


def test_seeds_and_threads_make_no_other_job() -> None:
    runs = two_runs({"seed": 1, "threads": 1}, {"seed": 2, "threads": 4})
    assert job_differences(runs) == []


def test_a_setting_that_an_older_folder_lacks_is_compared_among_the_others(
    make_run: MakeRun,
) -> None:
    runs = [make_run("a"), make_run("b", settings={"jitter": 0.1})]
    assert job_differences(runs) == []
    assert job_differences([*runs, make_run("c", settings={"jitter": 0.2})]) == ["jitter"]


def test_real_and_virtual_time_are_different_clocks(make_run: MakeRun) -> None:
    runs = [make_run("a", settings={"sigma": 2.0}), make_run("b", settings={"sigma": 5.0})]
    runs[0] = replace(runs[0], networked=True)
    assert job_differences(runs) == ["clock"]
