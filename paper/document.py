"""Building docs/paper.md and its figures from results and TOML files, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adaptcl.report.wording import number_of
from adaptcl.storage import written_whole
from paper.experiment import Experiment
from paper.figures import draw_overview, draw_part, draw_profiles
from paper.outcome import outcome
from paper.store import Store
from paper.tables import markdown, markdown_table
from paper.verdicts import verdicts


def build(experiments: Sequence[Experiment], store: Store, folder: Path) -> list[Path]:
    """Write the document and its figures below `folder`; the paths written."""
    figures = folder / "figures"
    written: list[Path] = []
    sections = [_opening(store), _verdict_section(experiments, store)]
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
            if not any(outcome(part, row, store).pairs for row in part.rows):
                sections.append("None of these runs has been made yet.")
                continue
            sections.append(part.remarks)
            sections.append(markdown(part, store))
            drawn = draw_part(part, store, figures / f"paper-{experiment.name}-{number}.svg")
            sections += _picture(drawn, f"{experiment.title}: {part.title}", written)
    document = folder / "paper.md"
    text = "\n\n".join(section for section in sections if section) + "\n"
    with written_whole(document) as file:
        file.write(text.encode())
    return [document, *written]


def _opening(store: Store) -> str:
    return (
        "# The paper, reproduced\n\n"
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
        "SHA-256 of the images it was made from."
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


def _verdict_section(experiments: Sequence[Experiment], store: Store) -> str:
    rows = [[verdict.claim.text, verdict.words] for verdict in verdicts(experiments, store)]
    return "## The main claims\n\n" + markdown_table(["claim", "verdict"], rows, texts=2)


def _profile_table(store: Store) -> str:
    if not store.profiles:
        return "Not measured yet."
    profiles = list(store.profiles.values())
    retentions = [f"{100 * each:.0f} %" for each in profiles[0].retention]
    headings = ["ms a step at retention", *retentions, "share that falls with FLOPs"]
    rows = [
        [
            f"{each.provenance.device}, {each.provenance.precision}",
            *(f"{1000 * seconds:.2f}" for seconds in each.seconds),
            f"{each.flops_share:.2f}",
        ]
        for each in profiles
    ]
    return markdown_table(headings, rows)


def _picture(drawn: Path | None, text: str, written: list[Path]) -> list[str]:
    """The Markdown of a figure, where there was anything to draw."""
    if drawn is None:
        return []
    written.append(drawn)
    return [f"![{text}](figures/{drawn.name})"]
