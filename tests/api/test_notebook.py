"""The notebook of the first hour, in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-hour.ipynb"


def outputs_of(notebook: Any, code: str) -> list[Any]:
    (cell,) = (each for each in notebook.cells if re.match(code, each.source))
    return list(cell.outputs)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [each for each in nbformat.read(NOTEBOOK, 4).cells if each.cell_type == "code"]
    assert cells
    assert not any(each.outputs or each.execution_count for each in cells)


@pytest.mark.slow
def test_the_notebook_shows_progress_in_one_output_and_results_by_themselves(
    tmp_path: Path,
) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()

    (shown,) = outputs_of(notebook, "results = ")
    words = shown.data["text/plain"]
    finished = re.findall(r"^(\S+) finished 16 rounds", words, re.MULTILINE)
    assert finished == ["fedavg", "fedavg-s", "adaptcl"]
    assert "round 16/16" in words
    assert "adaptcl" in shown.data["text/html"]

    (result,) = outputs_of(notebook, "results$")
    assert "<table>" in result.data["text/html"]
    assert "data:image/png;base64," in result.data["text/html"]
    assert "image/png" in outputs_of(notebook, "results.plot")[0].data
    assert "retention" in outputs_of(notebook, "fedavg, sparse, adapted")[0].data["text/html"]
    assert "<table>" in outputs_of(notebook, "swept")[0].data["text/html"]
    assert "'target_accuracy" in outputs_of(notebook, "early")[0].data["text/plain"]
    assert "part: True" in outputs_of(notebook, "loaded")[0].text
    assert not [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr"
    ]
