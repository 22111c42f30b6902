"""The document and its tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from paper import figures
from paper.document import build_document, part_table
from paper.experiment import Experiment, load_experiments
from paper.profile import Profile
from paper.result import Provenance, RunResult, write_result
from paper.store import Store, run_key

MakeUp = Callable[..., RunResult]
REPOSITORY = Path(__file__).parents[2]


def holding(*results: RunResult) -> Store:
    return Store(Path("nowhere"), {run_key(each.settings): each for each in results})


def test_without_runs_the_paper_stands_alone(tiny: Experiment) -> None:
    rows = part_table(tiny.parts[0], holding()).rows
    assert [row[:2] for row in rows] == [
        ("FedAVG-S", "paper"),
        ("", "ours, not run yet"),
        ("AdaptCL", "paper"),
        ("", "ours, not run yet"),
    ]
    assert rows[0][2:] == ("87.18", "–", "279.4", "–", "–")
    assert {*rows[1][2:]} == {""}


def test_seeds_make_a_mean_with_its_spread_and_differences_are_taken_seed_by_seed(
    tiny: Experiment, make_up: MakeUp
) -> None:
    part = tiny.parts[0]
    adaptive, barrier = part.row("AdaptCL"), part.baseline_of(part.row("AdaptCL"))
    assert barrier is not None
    store = holding(
        make_up(adaptive.config(1), accuracy=0.80, round_s=30.0),
        make_up(adaptive.config(2), accuracy=0.90, round_s=30.0),
        make_up(barrier.config(1), accuracy=0.79),
        make_up(barrier.config(2), accuracy=0.89),
    )
    row = part_table(part, store).rows[-1]
    assert row[1:3] == ("ours, 2 seeds", "84.79 ± 7.05")
    assert row[4:6] == ("2.0 ± 0.0", "+1.00 ± 0.00")


def test_seeds_that_are_missing_are_said_to_be(tiny: Experiment, make_up: MakeUp) -> None:
    part = tiny.parts[0]
    store = holding(make_up(part.row("AdaptCL").config(2)))
    row = part_table(part, store).rows[-1]
    assert row[1] == "ours, 1 of 2 seeds"
    assert row[5:] == ("–", "–")


def test_without_results_every_table_says_so_and_nothing_is_drawn(tmp_path: Path) -> None:
    written = build_document(load_experiments(), Store.open(tmp_path / "results"), tmp_path)
    assert written == [tmp_path / "paper.md"]
    text = written[0].read_text()
    assert "There are no runs so far." in text
    assert text.count("None of these runs has been made yet.") == text.count("\n### ")
    assert "Not measured yet." in text
    assert "![" not in text


def test_the_document_in_the_repository_is_what_its_results_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "image_of", lambda figure, form: b"composed, not rendered")
    store = Store.existing(REPOSITORY / "paper" / "results")
    document, *drawn = build_document(load_experiments(), store, tmp_path)
    text = document.read_text()
    assert text == (REPOSITORY / "docs" / "paper.md").read_text()
    linked = set(re.findall(r"\(figures/(.*?)\)", text))
    assert linked == {path.name for path in drawn}
    assert linked == {path.name for path in (REPOSITORY / "docs" / "figures").glob("paper-*.svg")}


def test_the_same_results_give_the_same_bytes(
    tiny: Experiment, make_up: MakeUp, nobody: Provenance, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    for number, planned in enumerate(tiny.planned_runs()):
        write_result(results / f"{number}.json", make_up(planned.config).to_json())
    profile = Profile("vgg16", 64, nobody, (1.0, 0.5), (1.0, 0.5), (2.0, 1.0))
    write_result(results / "profile-vgg16-cpu.json", profile.to_json())
    document, *drawn = build_document([tiny], Store.open(results), tmp_path / "one")
    assert "not run yet" not in document.read_text()
    assert [path.name for path in drawn] == ["paper-overview.svg", "paper-tiny-1.svg"]
    for path in drawn:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    again = build_document([tiny], Store.open(results), tmp_path / "other")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in (document, *drawn)]


def test_a_document_of_one_run_has_the_words_of_its_experiment(
    tiny: Experiment, make_up: MakeUp, tmp_path: Path
) -> None:
    made = make_up(tiny.parts[0].row("AdaptCL").config(1))
    store = Store(tmp_path, {run_key(made.settings): made})
    build_document([tiny], store, tmp_path)
    text = (tmp_path / "paper.md").read_text()
    assert "There is 1 run so far, made on " in text
    assert "Answers nothing in the paper." in text
    assert "AdaptCL is faster" in text
