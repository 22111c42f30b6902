from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from adaptcl.report import Run, comparison_table
from adaptcl.report.table import COLUMNS, ReportTable

MakeRun = Callable[..., Run]


def comparison_markdown(runs: Sequence[Run], *, over_seeds: bool = False) -> str:
    return comparison_table(runs, over_seeds=over_seeds).markdown()


def cells(markdown: str) -> list[list[str]]:
    """The rows of a Markdown table below its heading."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def column(runs: Sequence[Run], name: str, *, over_seeds: bool = False) -> list[str]:
    rows = cells(comparison_markdown(runs, over_seeds=over_seeds))
    return [row[COLUMNS.index(name)] for row in rows]


def test_every_number_of_a_run_is_in_its_row(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", strategy="adaptcl", adapts=True, final_accuracy=0.8125)]
    assert cells(comparison_markdown(runs)) == [
        [
            "fedavg-s",
            "80.00 %",
            "80.00 % at 6.7 min",
            "6.7 min",
            "1.00×",
            "0.00 %",
            "0.00 %",
            "0.600 → 0.600",
            "32.0 MiB",
        ],
        [
            "adaptcl",
            "81.25 %",
            "81.25 % at 3.6 min",
            "3.6 min",
            "1.87×",
            "30.00 %",
            "15.00 %",
            "0.429 → 0.167",
            "32.0 MiB",
        ],
    ]


def test_the_best_accuracy_says_when_it_was_reached(make_run: MakeRun) -> None:
    run = make_run("a", strategy="fedasync-s")
    assert run.summary is not None
    early = replace(run.summary, best_accuracy=0.85, best_round=2, best_virtual_time_s=90.0)
    assert column([replace(run, summary=early)], "best accuracy") == ["85.00 % at 90.0 s"]


def test_the_terminal_table_says_the_same_as_the_markdown(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", strategy="adaptcl", adapts=True)]
    page = StringIO()
    Console(file=page, width=200).print(comparison_table(runs))
    for row in cells(comparison_markdown(runs)):
        line = next(line for line in page.getvalue().splitlines() if f"│ {row[0]} " in line)
        assert [cell.strip() for cell in line.strip("│").split("│")] == row


def printed(width: int, runs: Sequence[Run], *, over_seeds: bool = False) -> list[str]:
    page = StringIO()
    Console(file=page, width=width).print(comparison_table(runs, over_seeds=over_seeds))
    return page.getvalue().splitlines()


@pytest.mark.parametrize("count", [1, 5])
def test_a_terminal_of_80_columns_gets_every_number_in_one_piece(
    make_run: MakeRun, count: int
) -> None:
    runs = [make_run(str(place), strategy=f"method-{place}", adapts=True) for place in range(count)]
    lines = printed(80, runs)
    assert max(map(len, lines)) <= 80
    lines_of_cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line
    ]
    for place, name in enumerate(COLUMNS[1:], start=1):
        shown = [cell for row in lines_of_cells if row[0] == name for cell in row[1:]]
        assert shown == [row[place] for row in cells(comparison_markdown(runs))]
    headings = " ".join(line for line in lines if "┃" in line)
    assert all(run.label in headings for run in runs)


def test_rows_of_one_label_stay_side_by_side_in_an_upright_table() -> None:
    rows = [("A", "paper", "1", "5"), ("", "ours", "2", "6"), ("B", "paper", "3", "7")]
    table = ReportTable(
        ("", "", "a column of this table", "another of its columns"), rows, labels=2
    )
    page = StringIO()
    Console(file=page, width=44).print(table)
    assert [line for line in page.getvalue().splitlines() if "a column" in line] == [
        "│ a column of this table │     1 │    2 │",
        "│ a column of this table │     3 │",
    ]


def test_a_bar_in_a_cell_does_not_end_it_in_markdown() -> None:
    table = ReportTable(("run", "x"), [("a|b", "1")], ["A note."])
    assert table.markdown() == "| run | x |\n| --- | ---: |\n| a\\|b | 1 |\n\nA note."


def test_a_wide_terminal_gets_one_row_a_run(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", strategy="adaptcl", adapts=True)]
    assert sum(line.startswith("│") for line in printed(200, runs)) == 2
    assert sum(line.startswith("│") for line in printed(80, runs)) == len(COLUMNS) - 1


@pytest.mark.parametrize("width", [20, 80])
def test_numbers_too_long_for_the_terminal_are_wrapped_and_not_lost(
    make_run: MakeRun, width: int
) -> None:
    runs = [
        make_run("a1", seed=1, final_accuracy=0.80, round_s=100.0),
        make_run("a2", seed=2, final_accuracy=0.84, round_s=120.0),
    ]
    lines = printed(width, runs, over_seeds=True)
    assert max(map(len, lines)) <= width
    assert "82.00" in "".join(lines)


def test_notes_stand_below_the_table(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", strategy="fedavg", rounds=8)]
    for width in (80, 200):
        assert printed(width, runs)[-1] == "The runs differ in rounds: compare times with care."


def test_square_brackets_in_a_label_are_printed_not_obeyed(make_run: MakeRun) -> None:
    page = StringIO()
    run = replace(make_run("a"), label="[red]mine[/red]")
    Console(file=page, width=200).print(comparison_table([run]))
    assert "[red]mine[/red]" in page.getvalue()


def test_speed_up_is_relative_to_the_baseline_wherever_it_stands(make_run: MakeRun) -> None:
    runs = [make_run("a", strategy="fedavg", round_s=200.0), make_run("b")]
    assert column(runs, "speed-up") == ["0.50×", "1.00×"]


def test_an_unfinished_run_shows_how_far_it_came_and_no_speed_up(make_run: MakeRun) -> None:
    whole = make_run("b", strategy="adaptcl", adapts=True, finished=False)
    runs = [make_run("a"), replace(whole, rounds=whole.rounds[:2])]
    assert cells(comparison_markdown(runs))[1] == (
        [
            "adaptcl, 2 of 4 rounds",
            "60.00 %",
            "60.00 % at 118.0 s",
            "118.0 s",
            "–",
            "30.00 %",
            "–",
            "0.429 → 0.167",
            "16.0 MiB",
        ]
    )


def test_a_run_without_a_round_has_no_numbers(make_run: MakeRun) -> None:
    run = replace(make_run("a", finished=False), rounds=())
    assert cells(comparison_markdown([make_run("b"), run]))[1][1:] == ["–"] * 8


def test_no_runs_make_an_empty_table() -> None:
    assert cells(comparison_markdown([])) == []
    assert comparison_table([]).rows == []


def test_runs_of_unequal_work_carry_a_warning(make_run: MakeRun) -> None:
    equal = [make_run("a"), make_run("b", strategy="adaptcl")]
    assert "with care" not in comparison_markdown(equal)
    longer = [*equal, make_run("c", strategy="fedavg", rounds=8)]
    assert "The runs differ in rounds: compare times with care." in comparison_markdown(longer)


def test_runs_on_different_clocks_carry_a_warning_and_say_it_in_their_labels(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run("a", settings={"sigma": 2.0, "train_time": 20.0}),
        make_run("b", strategy="adaptcl", settings={"sigma": 10.0, "train_time": 5.0}),
    ]
    text = comparison_markdown(runs)
    assert "The runs differ in sigma, train_time: compare times with care." in text
    assert [row[0] for row in cells(text)] == [
        "fedavg-s (sigma=2, train_time=20)",
        "adaptcl (sigma=10, train_time=5)",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.5, ["100.0 s", "2.0 min"]),
        (0.8, ["6.7 min", "–"]),
        (0.9, ["–", "–"]),
    ],
)
def test_the_time_to_a_target_is_when_it_was_first_measured(
    make_run: MakeRun, target: float, expected: list[str]
) -> None:
    runs = [
        make_run("a", final_accuracy=0.8),
        make_run("b", strategy="adaptcl", round_s=60.0, final_accuracy=0.7),
    ]
    table = comparison_table(runs, target_accuracy=target)
    assert table.headings[-1] == f"virtual time to {100 * target:g} %"
    assert [row[-1] for row in table.rows] == expected


def test_a_target_that_only_some_seeds_reached_says_how_many(make_run: MakeRun) -> None:
    runs = [
        make_run("a", seed=1, final_accuracy=0.8),
        make_run("b", seed=2, final_accuracy=0.6),
    ]
    (row,) = comparison_table(runs, over_seeds=True, target_accuracy=0.8).rows
    assert row[-1] == "6.7 min in 1 of 2 runs"
    (row,) = comparison_table(runs, over_seeds=True, target_accuracy=0.6).rows
    assert row[-1] == "5.0 ± 2.4 (3.3–6.7) min"


def test_a_note_names_a_seed_that_counts_twice(make_run: MakeRun) -> None:
    runs = [make_run("a", seed=1), make_run("b", seed=1)]
    assert "Several runs of one seed count as several: fedavg-s." in comparison_markdown(
        runs, over_seeds=True
    )


def test_runs_that_differ_only_in_their_seed_become_one_row(make_run: MakeRun) -> None:
    runs = [
        make_run("a1", seed=1, final_accuracy=0.80),
        make_run("a2", seed=2, final_accuracy=0.82),
        make_run("a3", seed=3, final_accuracy=0.84),
        make_run("b1", strategy="adaptcl", seed=1, adapts=True, round_s=50.0),
        make_run("b2", strategy="adaptcl", seed=2, adapts=True, round_s=100.0),
    ]
    assert column(runs, "run", over_seeds=True) == ["fedavg-s, 3 runs", "adaptcl, 2 runs"]
    assert column(runs, "accuracy", over_seeds=True) == [
        "82.00 ± 2.00 (80.00–84.00) %",
        "80.00 %",
    ]
    assert column(runs, "virtual time", over_seeds=True) == [
        "6.7 min",
        "2.7 ± 1.3 (1.8–3.6) min",
    ]
    assert "mean ± standard deviation (lowest–highest)" in comparison_markdown(
        runs, over_seeds=True
    )


def test_each_seed_is_compared_with_the_same_seed_of_the_baseline(make_run: MakeRun) -> None:
    runs = [
        make_run("a1", seed=1, round_s=100.0),
        make_run("a2", seed=2, round_s=300.0),
        make_run("b1", strategy="fedavg", seed=1, round_s=50.0),
        make_run("b2", strategy="fedavg", seed=2, round_s=150.0),
        make_run("c9", strategy="ssp-s", seed=9, round_s=50.0),
    ]
    # Seed 9 is not among the baseline's: its mean of 200 s a round stands in.
    assert column(runs, "speed-up", over_seeds=True) == ["1.00×", "2.00×", "4.00×"]


def test_unfinished_runs_are_left_out_of_means_and_named(make_run: MakeRun) -> None:
    runs = [
        make_run("a1", seed=1, final_accuracy=0.80),
        make_run("a2", seed=2, final_accuracy=0.84),
        make_run("a3", seed=3, final_accuracy=0.10, finished=False),
    ]
    markdown = comparison_markdown(runs, over_seeds=True)
    assert cells(markdown)[0][1] == "82.00 ± 2.83 (80.00–84.00) %"
    assert "Unfinished, and in no mean: fedavg-s (seed=3)." in markdown


def test_real_times_across_a_network_are_not_called_virtual(make_run: MakeRun) -> None:
    run = make_run("across")
    assert "| virtual time |" in comparison_markdown([run])
    (run.folder / "network.toml").touch()
    assert "| time |" in comparison_markdown([run])


def uneven(run: Run, by_worker: tuple[float | None, ...] = (0.75, 0.5)) -> Run:
    """The same run with accuracies by class and worker on record."""
    assert run.summary is not None
    summary = replace(
        run.summary, accuracy_by_class=(0.9, None, 0.25), accuracy_by_worker=by_worker
    )
    return replace(run, summary=summary)


def test_where_classes_are_dealt_unequally_the_table_shows_who_is_left_behind(
    make_run: MakeRun,
) -> None:
    dealt = {"partition": "by-label"}
    runs = [
        uneven(make_run("a", settings=dealt)),
        uneven(make_run("b", strategy="adaptcl", settings=dealt), by_worker=()),
        make_run("c", strategy="heterofl", settings=dealt),
    ]
    table = comparison_table(runs)
    assert table.headings == (*COLUMNS, "worst class", "least worker")
    assert [row[-2:] for row in table.rows] == [
        ("25.00 %", "50.00 %"),
        ("25.00 %", "–"),
        ("–", "–"),
    ]


def test_elsewhere_the_table_stays_narrow(make_run: MakeRun) -> None:
    iid, older = uneven(make_run("a")), make_run("b", settings={"partition": "dirichlet"})
    for runs in ([iid], [older], [iid, older]):
        assert comparison_table(runs).headings == COLUMNS


def test_over_seeds_a_row_is_held_against_the_baseline_seed_by_seed(make_run: MakeRun) -> None:
    runs = [make_run(f"a{s}", seed=s, final_accuracy=0.6 + s / 10) for s in (1, 2, 3)]
    runs += [
        make_run(f"b{s}", strategy="adaptcl", seed=s, final_accuracy=0.6 + s / 10 + gain)
        for s, gain in ((1, 0.01), (2, 0.02), (3, 0.03), (4, -0.5))
    ]
    text = comparison_markdown(runs, over_seeds=True)
    assert "| points above fedavg-s |" in text
    assert [row[-1].rstrip(" |") for row in cells(text)] == ["–", "+2.00 (-0.48 to +4.48)"]
    assert "seed by seed, and its 95 % interval; one that holds 0 may be luck." in text
    # One seed in common, or none: nothing can be said of how sure a difference is.
    for others in (runs[:1] + runs[3:5], runs[:2] + runs[5:]):
        assert "points above" not in comparison_markdown(others, over_seeds=True).lower()
