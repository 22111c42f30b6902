"""What a benchmark is, what it is asked and what it answers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.machine import Machine


@dataclass(frozen=True)
class Request:
    """What the user asked of a benchmark; 0 or empty leaves the choice to it."""

    device: str = "cpu"
    repeats: int = 0
    precision: str = "tf32"
    rounds: int = 0
    data_dir: str = ""
    python: str = ""
    """An interpreter that has the peers installed."""


@dataclass(frozen=True)
class Bar:
    """A limit that a figure is held to."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether a figure is on the right side."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True)
class Measurement:
    """One figure of a report."""

    label: str
    value: float
    """The figure itself, in the report's unit; a bar is about this."""
    seconds: float | None = None
    """The time behind it, where there is one."""
    bar: Bar | None = None
    limit: float | None = None
    """What the machine could reach at best, in the same unit as the value."""

    @property
    def verdict(self) -> str:
        """Whether the bar holds, in a word."""
        if self.bar is None:
            return ""
        return "holds" if self.bar.holds(self.value) else "missed"


@dataclass(frozen=True)
class BenchmarkReport:
    """What a benchmark found."""

    title: str
    unit: str
    """What the figures are, with the baseline they are measured against."""
    rows: tuple[Measurement, ...]
    how: str
    """How often it was measured and which of the times counts."""
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    """What goes into the JSON only: every time measured, loss curves."""


class Measure(Protocol):
    """The function `measure` of a benchmark's module."""

    def __call__(self, request: Request) -> BenchmarkReport:
        """Measure and report."""
        ...


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by name; its code is the module of that name beside this one."""

    name: str
    summary: str
    takes: tuple[str, ...] = ()
    """Groups of options beyond device and repeats that mean something to it."""
    module: str = ""
    """The module's name, where it is another."""

    def measure(self, request: Request) -> BenchmarkReport:
        """Import its module and run it."""
        module = importlib.import_module(f"adaptcl.bench.{self.module or self.name}")
        measure: Measure = module.measure
        return measure(request)


def to_json(name: str, report: BenchmarkReport, machine: Machine) -> dict[str, Any]:
    """The object that `--out` writes."""
    return {
        "benchmark": name,
        "title": report.title,
        "unit": report.unit,
        "how": report.how,
        "machine": machine.to_json(),
        "rows": [
            {
                "label": row.label,
                "value": row.value,
                "seconds": row.seconds,
                "bar": str(row.bar) if row.bar else None,
                "holds": row.bar.holds(row.value) if row.bar else None,
                "limit": row.limit,
            }
            for row in report.rows
        ],
        "notes": list(report.notes),
        "details": report.details,
    }
