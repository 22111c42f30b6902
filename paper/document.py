"""The document docs/paper.md with its tables and figures, made from results and TOML files alone.

In a table each row of the paper stands above ours; several seeds are a mean ± standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adaptcl.quantities import ABSENT
from adaptcl.report.table import ReportTable
from adaptcl.report.wording import number_of
from adaptcl.storage import written_whole
from paper.columns import COLUMNS
from paper.experiment import Experiment, ExperimentRow, Part
from paper.figures import draw_overview, draw_part, draw_profiles
from paper.outcomes import NOT_RUN, RowOutcome, find_outcome, judge_claims
from paper.store import Store


def build_document(experiments: Sequence[Experiment], store: Store, folder: Path) -> list[Path]:
    """Write the document and its figures below `folder`; return the paths written."""
    figures = folder / "figures"
    written: list[Path] = []
    sections = [_opening(store), _claims_section(experiments, store)]
    for experiment in experiments:
        sections.append(f"## `python -m paper {experiment.name}`: {experiment.title}")
        sections.append(f"Answers {experiment.answers}.")
        sections.append(experiment.remarks)
        if experiment.overview:
            parts = [experiment.part(title) for title in experiment.overview]
            drawn = draw_overview(parts, store, figures / "paper-overview.svg")
            sections += _picture(drawn, "Accuracy over virtual time, all methods", written)
        if experiment.profiled_model:
            sections.append(_profile_table(store))
            drawn = draw_profiles(list(store.profiles.values()), figures / "paper-profile.svg")
            sections += _picture(drawn, "Time of a training step against retention", written)
        for number, part in enumerate(experiment.parts, start=1):
            sections.append(f"### {part.title}")
            if not any(find_outcome(part, row, store).runs for row in part.rows):
                sections.append("None of these runs has been made yet.")
                continue
            sections.append(part.remarks)
            sections.append(part_table(part, store).markdown())
            drawn = draw_part(part, store, figures / f"paper-{experiment.name}-{number}.svg")
            sections += _picture(drawn, f"{experiment.title}: {part.title}", written)
    document = folder / "paper.md"
    text = "\n\n".join(section for section in sections if section) + "\n"
    with written_whole(document) as file:
        file.write(text.encode())
    return [document, *written]


def part_table(part: Part, store: Store, title: str = "") -> ReportTable:
    """A part's table: for each row the paper's numbers, and below them ours."""
    rows: list[tuple[str, ...]] = []
    for row in part.rows:
        label = row.label
        if row.paper is not None:
            rows.append((label, "paper", *_paper_cells(part, row)))
            label = ""  # it stands in the line above
        outcome = find_outcome(part, row, store)
        rows.append((label, _source(outcome), *_our_cells(part, outcome)))
    headings = ("", "", *(COLUMNS[column].heading for column in part.columns))
    return ReportTable(headings, rows, title=title, labels=2)


def _paper_cells(part: Part, row: ExperimentRow) -> list[str]:
    printed = row.paper or {}
    return [COLUMNS[column].number.write([printed.get(column)]) for column in part.columns]


def _our_cells(part: Part, outcome: RowOutcome) -> list[str]:
    if not outcome.runs:
        return [""] * len(part.columns)
    return [_our_cell(outcome, column) for column in part.columns]


def _our_cell(outcome: RowOutcome, column: str) -> str:
    """The mean over seeds; it says how many seeds if only some have a value."""
    values, seeds = outcome.values(column), len(outcome.runs)
    cell = COLUMNS[column].number.write(values)
    return (
        cell
        if cell == ABSENT or len(values) == seeds
        else f"{cell} ({len(values)} of {seeds} seeds)"
    )


def _source(outcome: RowOutcome) -> str:
    made, expected = len(outcome.runs), len(outcome.row.seeds)
    if not made:
        return f"ours, {NOT_RUN}"
    seeds = number_of(expected, "seed")
    return f"ours, {seeds}" if made == expected else f"ours, {made} of {seeds}"


def _opening(store: Store) -> str:
    return (
        "# The paper, reproduced\n\n"
        "**What holds:** after a few prunings unequal workers take equally long, and rounds "
        "get as much faster as the paper says, with the accuracy of FedAVG-S at σ = 2 on the "
        "mean of three seeds. **What does not:** sparse training gains nothing over plain "
        "FedAVG, where the paper prints 2.3 and 7.5 points. At the paper's strength it costs "
        "two, so with the paper's settings plain FedAVG is ahead of AdaptCL after equal time "
        "on IID data. At σ = 20 the paper's schedule prunes too late. The order of pruning "
        "need not be constant. **Ruled out** as reasons for the missing gain: a lasso over "
        "filters alone, weaker and stronger strengths, a lasso without the √|g| weights, no "
        "momentum, another learning rate, random crops and flips, the JPEG files and "
        "bfloat16.\n\n"
        "Written by `python -m paper report` from `paper/results/*.json` and the experiments' "
        "TOML files; do not edit it. In each table the paper's numbers stand above ours, in the "
        "same columns. Accuracy is given at the end of the run first, then the best that was "
        "measured: of the synchronous methods the paper prints the accuracy of the run, of the "
        "asynchronous ones the best. Several seeds are written as mean ± standard deviation, "
        "differences are taken seed by seed. Time is the simulation's virtual time.\n\n"
        "The images are not the paper's files: CIFAR-10 as JPEGs, and Tiny-ImageNet scaled to "
        "32×32, whose first 100 classes (Tiny-ImageNet-100) take the place of CIFAR-100. So "
        "compare methods on the same data; an accuracy here and one there are not of the same "
        "images.\n\n"
        f"{_runs_so_far(store)} `python -m paper all --data-dir DIR` makes those that are missing, "
        "on a GPU with `--device cuda --precision bf16`; `python -m paper list` says which they "
        "are. Each result holds its settings, commit, device, seed, wall time and the "
        "SHA-256 of the images it was made from. Six runs of seed 1 (table-equal-time) that were "
        "made again at commit 8cc1a83 ended with exactly the same accuracies."
    )


def _runs_so_far(store: Store) -> str:
    made = [run.provenance for run in store.runs.values() if not run.smoke]
    if not made:
        return "There are no runs so far."
    devices = sorted({f"{each.device} ({each.precision})" for each in made})
    commits = sorted({each.commit.partition("-")[0][:10] for each in made})
    return (
        f"There {'is' if len(made) == 1 else 'are'} {number_of(len(made), 'run')} so far, made on "
        f"{'; '.join(devices)} at "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    )


def _claims_section(experiments: Sequence[Experiment], store: Store) -> str:
    rows = [(verdict.claim.text, verdict.words) for verdict in judge_claims(experiments, store)]
    table = ReportTable(("claim", "verdict"), rows, labels=2)
    return "## The main claims\n\n" + table.markdown()


def _profile_table(store: Store) -> str:
    if not store.profiles:
        return "Not measured yet."
    profiles = list(store.profiles.values())
    retentions = [f"{100 * each:.0f} %" for each in profiles[0].retention]
    headings = ("ms a step at retention", *retentions, "share that falls with FLOPs")
    rows = [
        (
            f"{each.provenance.device}, {each.provenance.precision}",
            *(f"{1000 * seconds:.2f}" for seconds in each.seconds),
            f"{each.flops_share:.2f}",
        )
        for each in profiles
    ]
    return ReportTable(headings, rows).markdown()


def _picture(drawn: Path | None, text: str, written: list[Path]) -> list[str]:
    """The Markdown of a figure, if there is one."""
    if drawn is None:
        return []
    written.append(drawn)
    return [f"![{text}](figures/{drawn.name})"]
