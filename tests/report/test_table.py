from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.saved_run import Run
from adaptcl.report.table import ReportTable, comparison_table

MakeRun = Callable[..., Run]


LATE = "accuracy (mean of last 5 tests)"


def table_of(runs: Sequence[Run], *, over_seeds: bool = False, **asked: Any) -> ReportTable:
    return comparison_table(compare(runs, over_seeds=over_seeds, **asked))


def comparison_markdown(runs: Sequence[Run], *, over_seeds: bool = False) -> str:
    return table_of(runs, over_seeds=over_seeds).markdown()


def cells(markdown: str) -> list[list[str]]:
    """The rows of a Markdown table below its heading."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def column(runs: Sequence[Run], name: str, *, over_seeds: bool = False) -> list[str]:
    table = table_of(runs, over_seeds=over_seeds)
    return [row[table.headings.index(name)] for row in table.rows]


def test_every_number_of_a_run_is_in_its_row(make_run: MakeRun) -> None:
    runs = [
        make_run("a", rounds=10),
        make_run("b", strategy="adaptcl", adapts=True, rounds=10, final_accuracy=0.8125),
    ]
    table = table_of(runs)
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert rows == [
        {
            "run": "fedavg-s",
            LATE: "72.00 %",
            "accuracy at 7.9 min": "58.98 %",
            "time to fedavg-s's final accuracy": "13.3 min",
            "speed-up": "1.00×",
            "virtual time": "16.7 min",
            "parameters saved": "0.00 %",
            "FLOPs saved": "0.00 %",
            "H before → after": "0.600 → 0.600",
            "bytes moved": "80.0 MiB",
        },
        {
            "run": "adaptcl",
            LATE: "73.12 %",
            "accuracy at 7.9 min": "73.12 %",
            "time to fedavg-s's final accuracy": "7.7 min",
            "speed-up": "1.73×",
            "virtual time": "9.5 min",
            "parameters saved": "30.00 %",
            "FLOPs saved": "15.00 %",
            "H before → after": "0.545 → 0.167",
            "bytes moved": "80.0 MiB",
        },
    ]


def test_a_run_alone_is_compared_with_nothing(make_run: MakeRun) -> None:
    (row,) = table_of([make_run("a")]).rows
    headings = table_of([make_run("b")]).headings
    assert not any("speed-up" in name or " at " in name or " to " in name for name in headings)
    assert row[:3] == ("fedavg-s", "65.00 %", "6.7 min")


def test_the_terminal_table_says_the_same_as_the_markdown(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", strategy="adaptcl", adapts=True)]
    page = StringIO()
    Console(file=page, width=300).print(table_of(runs))
    for row in cells(comparison_markdown(runs)):
        line = next(line for line in page.getvalue().splitlines() if f"│ {row[0]} " in line)
        assert [cell.strip() for cell in line.strip("│").split("│")] == row


def printed(width: int, runs: Sequence[Run], *, over_seeds: bool = False) -> list[str]:
    page = StringIO()
    Console(file=page, width=width).print(table_of(runs, over_seeds=over_seeds))
    return page.getvalue().splitlines()


def columns_of(lines: Sequence[str]) -> list[str]:
    """The text below each run's name in upright tables, read down the column."""
    found: list[list[str]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("│").split("│")][1:]
        if line.startswith("┏"):
            found += [[] for _ in range(line.count("┳"))]
        elif line.startswith("│"):
            for column, cell in zip(found[-len(cells) :], cells, strict=True):
                column.append(cell)
    return [" ".join(filter(None, column)) for column in found]


@pytest.mark.parametrize(("count", "tables"), [(1, 1), (3, 1), (5, 2)])
def test_a_terminal_of_60_columns_gets_every_number_in_one_piece(
    make_run: MakeRun, count: int, tables: int
) -> None:
    runs = [make_run(str(place), strategy=f"method-{place}", adapts=True) for place in range(count)]
    lines = printed(60, runs)
    assert max(map(len, lines)) <= 60
    assert columns_of(lines) == [" ".join(row[1:]) for row in cells(comparison_markdown(runs))]
    headings = " ".join(line for line in lines if "┃" in line)
    assert all(run.label in headings for run in runs)
    assert sum(line.startswith("┏") for line in lines) == tables


@pytest.mark.parametrize("strategies", [("fedavg-s", "adaptcl"), ("fedavg-s", "adaptcl", "ssp-s")])
def test_three_or_four_methods_stand_side_by_side_in_80_columns(
    make_run: MakeRun, strategies: tuple[str, ...]
) -> None:
    runs = [
        make_run(each, strategy=each, rounds=10, adapts=True) for each in ("fedavg", *strategies)
    ]
    lines = printed(80, runs)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("┏") for line in lines) == 1


def test_intervals_of_three_methods_fit_into_80_columns(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{seed}", strategy=name, seed=seed, rounds=10, round_s=s + seed)
        for name, s in (("fedavg", 100.0), ("adaptcl", 50.0), ("ssp-s", 80.0))
        for seed in (1, 2, 3)
    ]
    lines = printed(80, runs, over_seeds=True)
    assert sum(line.startswith("┏") for line in lines) == 1
    assert columns_of(lines) == [
        " ".join(row[1:]) for row in cells(comparison_markdown(runs, over_seeds=True))
    ]


def test_the_runs_of_a_condition_stand_together(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{s}", strategy=name, rounds=10, round_s=10 * s, settings={"sigma": s})
        for name in ("fedavg", "adaptcl")
        for s in (2.0, 9.0)
    ]
    assert column(runs, "run") == [
        f"{name} (sigma={s})" for s in (2, 9) for name in ("fedavg", "adaptcl")
    ]


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


def test_a_table_for_latex_needs_no_package_and_escapes_its_cells() -> None:
    table = ReportTable(
        ("run", "H → x"), [("a_b {σ=2}", "1.0 ± 0.1 %"), ("c&d-1", "-2 (-3)")], ["A note."]
    )
    assert table.latex().splitlines() == [
        r"\begin{tabular}{lr}",
        r"run & H $\to$ x \\",
        r"\hline",
        r"a\_b \{$\sigma$=2\} & 1.0 $\pm$ 0.1 \% \\",
        r"c\&d-1 & $-$2 ($-$3) \\",
        r"\end{tabular}",
        "% A note.",
    ]


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
    assert "66.62" in "".join(lines)


def test_the_words_of_the_paper_are_explained_below_the_table(make_run: MakeRun) -> None:
    words = table_of([make_run("a"), make_run("b", strategy="adaptcl")]).notes[0]
    beginnings = [each.partition(":")[0] for each in words.split("; ")]
    assert beginnings == ["fedavg-s", "virtual time", "parameters saved", "H"]
    assert "1 − retention, the share that workers keep" in words
    assert "fedavg-s" not in table_of([make_run("c", strategy="fedavg")]).notes[0]


def test_notes_stand_below_the_table(make_run: MakeRun) -> None:
    runs = [make_run("a", rounds=12), make_run("b", strategy="fedavg", rounds=10)]
    for width in (80, 300):
        assert printed(width, runs)[-1] == "The runs differ in rounds: compare times with care."


def test_where_every_condition_has_a_time_of_its_own_each_cell_names_it(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{s}", strategy=name, rounds=10, round_s=10 * s, settings={"sigma": s})
        for s in (2.0, 9.0)
        for name in ("fedavg", "adaptcl")
    ]
    assert column(runs, "accuracy at equal time") == [
        *["72.00 % at 2.7 min"] * 2,
        *["72.00 % at 12 min"] * 2,
    ]


def test_square_brackets_in_a_label_are_printed_not_obeyed(make_run: MakeRun) -> None:
    page = StringIO()
    run = replace(make_run("a"), label="[red]mine[/red]")
    Console(file=page, width=200).print(table_of([run]))
    assert "[red]mine[/red]" in page.getvalue()


def test_an_unfinished_run_of_dc_asgd_counts_its_commits(make_run: MakeRun) -> None:
    settings = {"epochs": 2.0, "commit_epochs": 0.5}
    run = make_run("a", strategy="dc-asgd-a-s", finished=False, settings=settings)
    assert table_of([run]).rows[0][0] == "dc-asgd-a-s, 4 of 16 rounds"


def test_an_unfinished_run_shows_how_far_it_came(make_run: MakeRun) -> None:
    whole = make_run("b", strategy="adaptcl", adapts=True, finished=False)
    runs = [make_run("a"), replace(whole, rounds=whole.rounds[:2])]
    assert table_of(runs).rows[1] == (
        "adaptcl, 2 of 4 rounds",
        "55.00 %",
        "–",
        "–",
        "–",
        "118.0 s",
        "30.00 %",
        "–",
        "0.429 → 0.167",
        "16.0 MiB",
    )


def test_a_run_without_a_round_has_no_numbers(make_run: MakeRun) -> None:
    run = replace(make_run("a", finished=False), rounds=())
    assert set(table_of([make_run("b"), run]).rows[1][1:]) == {"–"}


def test_no_runs_make_an_empty_table() -> None:
    assert cells(comparison_markdown([])) == []
    assert table_of([]).rows == []


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


def test_a_target_accuracy_takes_the_place_of_what_the_baseline_ends_with(
    make_run: MakeRun,
) -> None:
    runs = [
        make_run("a", final_accuracy=0.8),
        make_run("b", strategy="adaptcl", round_s=60.0, final_accuracy=0.7),
    ]
    table = table_of(runs, target=0.6)
    assert table.headings[3:5] == ("time to 60 %", "speed-up")
    assert [row[3:5] for row in table.rows] == [("3.3 min", "1.00×"), ("–", "–")]


def test_a_target_that_only_some_seeds_reached_says_how_many(make_run: MakeRun) -> None:
    runs = [
        make_run("a", seed=1, final_accuracy=0.8),
        make_run("b", seed=2, final_accuracy=0.4),
        make_run("c", strategy="adaptcl", seed=1, final_accuracy=0.8),
    ]
    rows = table_of(runs, over_seeds=True, target=0.6).rows
    assert [row[3] for row in rows] == ["3.3 min in 1 of 2 runs", "3.3 min"]
    rows = table_of(runs, over_seeds=True, target=0.3).rows
    assert rows[0][3] == "2.5 ± 1.2 min"


def test_runs_that_differ_only_in_their_seed_become_one_row(make_run: MakeRun) -> None:
    runs = [
        make_run("a1", seed=1, final_accuracy=0.80),
        make_run("a2", seed=2, final_accuracy=0.82),
        make_run("a3", seed=3, final_accuracy=0.84),
        make_run("b1", strategy="adaptcl", seed=1, adapts=True, round_s=50.0),
        make_run("b2", strategy="adaptcl", seed=2, adapts=True, round_s=100.0),
    ]
    assert column(runs, "run", over_seeds=True) == ["fedavg-s, 3 runs", "adaptcl, 2 runs"]
    assert column(runs, LATE, over_seeds=True) == ["66.62 ± 1.62 %", "65.00 %"]
    assert column(runs, "virtual time", over_seeds=True) == ["6.7 min", "2.7 ± 1.3 min"]
    assert "mean ± standard deviation" in comparison_markdown(runs, over_seeds=True)


def test_unfinished_runs_are_left_out_of_means_and_named(make_run: MakeRun) -> None:
    runs = [
        make_run("a1", seed=1, final_accuracy=0.80),
        make_run("a2", seed=2, final_accuracy=0.84),
        make_run("a3", seed=3, final_accuracy=0.10, finished=False),
    ]
    markdown = comparison_markdown(runs, over_seeds=True)
    assert cells(markdown)[0][1] == "66.62 ± 2.30 %"
    assert "Unfinished, and in no mean: fedavg-s (seed=3)." in markdown


def test_real_times_across_a_network_are_not_called_virtual(make_run: MakeRun) -> None:
    run = make_run("across")
    assert "| virtual time |" in comparison_markdown([run])
    run = replace(run, networked=True)
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
    table = table_of(runs)
    assert table.headings[-2:] == ("worst class (last test)", "least worker (last test)")
    assert [row[-2:] for row in table.rows] == [
        ("25.00 %", "50.00 %"),
        ("25.00 %", "–"),
        ("–", "–"),
    ]


def test_elsewhere_the_table_stays_narrow(make_run: MakeRun) -> None:
    iid, older = uneven(make_run("a")), make_run("b", settings={"partition": "dirichlet"})
    for runs in ([iid], [older], [iid, older]):
        assert table_of(runs).headings[-1] == "bytes moved"


def test_over_seeds_differences_and_speed_ups_have_intervals(make_run: MakeRun) -> None:
    runs = [make_run(f"a{s}", seed=s, final_accuracy=0.8 + s / 100) for s in (1, 2, 3)]
    runs += [
        make_run(f"b{s}", strategy="adaptcl", seed=s, final_accuracy=0.8 + s / 100, round_s=round_s)
        for s, round_s in ((1, 50.0), (2, 40.0), (3, 50.0), (4, 100.0))
    ]
    points = "points above fedavg-s at 100 s"
    assert column(runs, "speed-up", over_seeds=True) == ["1.00×", "2.15× (1.56 to 2.97)"]
    assert column(runs, points, over_seeds=True) == ["–", "+11.96 (+4.60 to +19.32)"]
    text = comparison_markdown(runs, over_seeds=True)
    assert "one that holds 0 points, or 1×, may be luck." in text
    # One seed in common, or none: nothing can be said of how sure a difference is.
    for others in (runs[:1] + runs[3:5], runs[:2] + runs[5:]):
        assert "points above" not in comparison_markdown(others, over_seeds=True).lower()


def test_where_a_seed_never_reaches_the_target_there_is_no_speed_up(make_run: MakeRun) -> None:
    runs = [
        make_run(f"{name}{seed}", strategy=name, seed=seed, round_s=round_s, final_accuracy=end)
        for name, round_s, ends in (
            ("fedavg", 100.0, (0.8, 0.8, 0.8)),
            ("adaptcl", 50.0, (0.8, 0.8, 0.7)),
            ("fedbuff", 60.0, (0.8, 0.8, 0.8)),
        )
        for seed, end in enumerate(ends)
    ]
    found = column(runs, "speed-up", over_seeds=True)
    assert found == ["1.00×", "2 of 3 reach it", "1.67× (1.67 to 1.67)"]
    missing = compare(runs).rows[1]
    assert (missing.speed_up, missing.speed_up_interval) == (None, None)


def test_runs_of_unequal_length_say_how_many_rounds_they_had(make_run: MakeRun) -> None:
    runs = [make_run("a", rounds=4), make_run("b", strategy="adaptcl", rounds=6)]
    table = comparison_table(compare(runs))
    place = table.headings.index("rounds")
    assert [row[place] for row in table.rows] == ["4", "6"]
    assert "rounds" not in comparison_table(compare(runs[:1])).headings
