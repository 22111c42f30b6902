"""The document, from results that nobody ran (they say so in their provenance)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from paper.document import build
from paper.experiment import Experiment
from paper.profile import Profile
from paper.provenance import Provenance
from paper.reading import load_all
from paper.result import RunResult, write
from paper.store import Store, result_path

MakeUp = Callable[..., RunResult]


def test_without_results_every_table_says_so_and_nothing_is_drawn(tmp_path: Path) -> None:
    written = build(load_all(), Store.open(tmp_path / "results"), tmp_path)
    assert written == [tmp_path / "paper.md"]
    text = written[0].read_text()
    assert "There are no runs so far." in text
    assert text.count("None of these runs has been made yet.") == text.count("\n### ")
    assert "Not measured yet." in text
    assert "![" not in text


def test_the_whole_paper_is_built_from_files_and_the_same_files_give_the_same_bytes(
    tmp_path: Path, make_up: MakeUp, nobody: Provenance
) -> None:
    results = tmp_path / "results"
    experiments = load_all()
    for experiment in experiments:
        for wanted in experiment.wanted():
            made = make_up(wanted.config)
            write(result_path(results, made.settings, "0" * 64), made.to_json())
    profile = Profile("vgg16", 64, nobody, (1.0, 0.5), (1.0, 0.5), (2.0, 1.0))
    write(results / "profile-vgg16-cpu.json", profile.to_json())
    written = build(experiments, Store.open(results), tmp_path / "one")
    text = written[0].read_text()
    assert "not run yet" not in text
    assert "has been made yet" not in text
    assert "made up for a test" in text
    linked = set(re.findall(r"\(figures/(.*?)\)", text))
    assert linked == {path.name for path in written[1:]}
    assert "paper-overview.svg" in linked
    for path in written[1:]:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    again = build(experiments, Store.open(results), tmp_path / "other")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_one_run_is_not_several(tiny: Experiment, make_up: MakeUp, tmp_path: Path) -> None:
    write(tmp_path / "one.json", make_up(tiny.parts[0].row("AdaptCL").config(1)).to_json())
    build([tiny], Store.open(tmp_path), tmp_path)
    assert "There is 1 run so far, made on " in (tmp_path / "paper.md").read_text()


def test_the_explanations_come_from_the_experiment(tiny: Experiment, tmp_path: Path) -> None:
    build([tiny], Store.open(tmp_path), tmp_path)
    text = (tmp_path / "paper.md").read_text()
    assert "Answers nothing in the paper." in text
    assert "AdaptCL is faster" in text
