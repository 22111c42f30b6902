"""One HTML file that shows runs. It opens offline, asks no other host and can be mailed.

Curves are drawn by uPlot (50 kB, MIT licence), which zooms and toggles tens of thousands of points
without a build step. It and our own script and style are written into the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from adaptcl.page.page_data import Values, page_data
from adaptcl.report.labels import distinct_labels
from adaptcl.report.saved_run import Run
from adaptcl.storage import written_whole

REPORT = "report.html"


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a page about these runs; the same runs give the same bytes."""
    with written_whole(path) as file:
        file.write(page(json_text(page_data(runs))).encode("utf-8"))


def write_reports(runs: Sequence[Run], folder: Path) -> Path:
    """Write the page of every run into its folder, and one about all of them above these."""
    for run in runs:
        write_report([run], run.folder / REPORT)
    if len(runs) == 1:
        return runs[0].folder / REPORT
    write_report(distinct_labels(runs), folder / REPORT)
    return folder / REPORT


def json_text(data: Values) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def page(data: str) -> str:
    """The page with its data, script and style in it."""
    # No text in a run may close the script element that holds it.
    content = data.replace("<", "\\u003c")
    parts = {
        "/*STYLE*/": _asset("uPlot.min.css") + _asset("page.css"),
        "/*UPLOT*/": _asset("uPlot.iife.min.js"),
        "/*SCRIPT*/": _asset("page.js"),
        "/*DATA*/": content,
    }
    text = _asset("page.html")
    for mark, part in parts.items():
        before, after = text.split(mark)
        text = before + part + after
    return text


def _asset(name: str) -> str:
    return (resources.files("adaptcl.page") / "assets" / name).read_text(encoding="utf-8")
