"""One experiment of the paper: parts, rows, runs and printed numbers.

An experiment has parts (one table with its figures each, say IID and non-IID), a part has rows,
and a row is one line of a table or one curve: a strategy with settings and seeds, and what the
paper prints for it. It may be held against a baseline, which is run under the row's own settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adaptcl import config
from adaptcl.config import Config
from adaptcl.errors import SettingError


@dataclass(frozen=True)
class TableRow:
    """One line of a table or one curve of a figure."""

    label: str
    values: Mapping[str, Any]
    """Raw settings, those of the preset, the experiment and the part included."""
    seeds: tuple[int, ...]
    priority: int
    """The lower, the sooner its runs are made."""
    paper: Mapping[str, float] | None = None
    """What the paper prints, by column; None where the paper has no such row."""
    x: float | None = None
    """Where the row stands on the horizontal axis of a trade-off figure."""

    def config(self, seed: int) -> Config:
        """The configuration of one run."""
        return config.configure(config.override(self.values, {"seed": seed}))

    def configs(self) -> Iterator[Config]:
        """The configurations of all runs."""
        for seed in self.seeds:
            yield self.config(seed)


@dataclass(frozen=True)
class Part:
    """One table, and the figures drawn of its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    baseline: Mapping[str, Any] | None
    """Settings that turn a row into what it is held against."""
    figures: tuple[str, ...]
    x_label: str
    remarks: str

    def against(self, row: TableRow) -> TableRow | None:
        """The row that a row's gains and losses are counted from."""
        if self.baseline is None:
            return None
        return TableRow(
            f"{row.label} (baseline)",
            config.override(row.values, self.baseline),
            row.seeds,
            row.priority,
        )

    def row(self, label: str) -> TableRow:
        """The row of that label."""
        for row in self.rows:
            if row.label == label:
                return row
        raise SettingError(f"{self.title} has no row {label!r}.")


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can prove or refute."""

    text: str
    part: str
    row: str
    least_delta: float
    """Points of accuracy that the row must be above its baseline by; negative where it may lose."""
    least_speed_up: float
    least_seeds: int


@dataclass(frozen=True)
class Wanted:
    """One run that an experiment needs."""

    config: Config
    label: str
    priority: int


@dataclass(frozen=True)
class Experiment:
    """Everything a TOML file says."""

    name: str
    title: str
    answers: str
    """Which of the paper's tables or figures it is for."""
    place: int
    """Where it stands in the document."""
    remarks: str
    parts: tuple[Part, ...]
    claims: tuple[Claim, ...]
    profiled_model: str
    """The model whose training time against retention is measured; empty where none is."""
    overview: tuple[str, ...] = ()
    """Titles of the parts whose curves over time make the document's first picture."""

    def part(self, title: str) -> Part:
        """The part of that title."""
        for part in self.parts:
            if part.title == title:
                return part
        raise SettingError(f"{self.name} has no part {title!r}.")

    def wanted(self) -> Iterator[Wanted]:
        """All runs, those of baselines included; the same run may come several times."""
        for part in self.parts:
            for row in part.rows:
                baseline = part.against(row)
                for each in (row, *([baseline] if baseline else [])):
                    for chosen in each.configs():
                        yield Wanted(chosen, f"{part.title}: {each.label}", each.priority)
