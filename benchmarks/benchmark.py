"""A benchmark, the request it gets and the report it returns."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from adaptcl.errors import SettingError
from adaptcl.report.table import ReportTable
from benchmarks.machine import Machine


@dataclass(frozen=True)
class Request:
    """The user's options; 0 or empty leaves the choice to the benchmark."""

    device: str = "cpu"
    repeats: int = 0
    precision: str = "tf32"
    rounds: int = 0
    data_dir: str = ""
    python: str = ""
    """An interpreter that has the peers installed."""
    models: str = ""
    """Patterns for the models, such as timm/*, separated by commas."""
    keep: str = ""
    """A file for what is done, so that a later run goes on from there."""

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The models that the patterns name."""
        patterns = (self.models or "*").split(",")
        found = [name for name in names if any(fnmatch(name, each) for each in patterns)]
        if not found:
            raise SettingError(f"No model is called like {self.models!r}.")
        return found

    def finished(self, part: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the file knows of a part of a long benchmark; else measure and note it."""
        path = Path(self.keep) if self.keep else None
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                known: dict[str, dict[str, Any]] = json.loads(line)
                if part in known:
                    return known[part]
        found = measure()
        line = json.dumps({part: found})
        print(line, flush=True)
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return found


@dataclass(frozen=True)
class Bar:
    """A limit that a figure has to keep."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True)
class Measurement:
    """One figure of a report."""

    label: str
    value: float
    """The figure in the report's unit; the bar refers to it."""
    seconds: float | None = None
    """The time behind it, if there is one."""
    bar: Bar | None = None
    limit: float | None = None
    """The best that the machine could reach, in the same unit."""

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "holds" if self.bar.holds(self.value) else "missed"


@dataclass(frozen=True)
class BenchmarkReport:
    """The result of a benchmark."""

    title: str
    unit: str
    """What the figures are, and the baseline they refer to."""
    rows: tuple[Measurement, ...]
    how: str
    """How often it was measured and which of the times counts."""
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    """For the JSON only: every time measured, loss curves."""

    def table(self, machine: Machine) -> ReportTable:
        """The figures with their bars; times only on a GPU, because a CPU is shared."""
        timed = machine.gpu and any(row.seconds is not None for row in self.rows)
        limited = any(row.limit is not None for row in self.rows)
        barred = any(row.bar is not None for row in self.rows)
        headings = ["", self.unit]
        headings += ["time"] if timed else []
        headings += ["limit"] if limited else []
        headings += ["bar", ""] if barred else []
        rows = []
        for row in self.rows:
            cells = [row.label, _number(row.value)]
            cells += [_time(row.seconds)] if timed else []
            cells += [_number(row.limit)] if limited else []
            cells += [str(row.bar or ""), row.verdict] if barred else []
            rows.append(tuple(cells))
        notes = [f"Machine: {machine}.", f"Measured: {self.how}.", *self.notes]
        return ReportTable(tuple(headings), rows, notes, self.title, upright=False)

    def to_json(self, name: str, machine: Machine) -> dict[str, Any]:
        """The object that `--out` writes."""
        return {
            "benchmark": name,
            "title": self.title,
            "unit": self.unit,
            "how": self.how,
            "machine": asdict(machine),
            "rows": [
                {
                    "label": row.label,
                    "value": row.value,
                    "seconds": row.seconds,
                    "bar": str(row.bar) if row.bar else None,
                    "holds": row.bar.holds(row.value) if row.bar else None,
                    "limit": row.limit,
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
            "details": self.details,
        }


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by name; its module beside this one has a function `measure`."""

    name: str
    summary: str
    options: tuple[str, ...] = ()
    """Groups of command-line options that it takes besides device and repeats."""
    module: str = ""
    """The module's name if it differs."""

    def measure(self, request: Request) -> BenchmarkReport:
        return self.function()(request)

    def function(self) -> Callable[[Request], BenchmarkReport]:
        """Import the module and return its `measure`."""
        module = importlib.import_module(f"benchmarks.{self.module or self.name}")
        measure: Callable[[Request], BenchmarkReport] = module.measure
        return measure


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"
