"""An experiment of the paper and the TOML file that describes it.

An experiment has parts; a part is one table with its figures, such as IID or non-IID. A part has
rows; a row is one line of the table or one curve: a strategy with settings and seeds, and the
numbers that the paper prints for it. A row may have a baseline, which runs under the row's own
settings. The keys of a TOML file are:

title, answers, place, remarks      about the whole experiment
preset, priority, seeds, settings   for every row that does not say otherwise
profiled_model                      the model of which the training time is measured
overview                            titles of the parts in the document's first picture
[[parts]]         title, columns, figures, remarks, x_label, priority, settings, preset, seeds
[parts.baseline]  settings that turn a row into its baseline
[[parts.rows]]    label, strategy, settings, seeds, priority, paper, x
[[claims]]        text, part, row, least_delta, least_speed_up, least_seeds,
                  speed_up, delta
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptcl.config.config import Config, configure
from adaptcl.config.files import DEFAULT_PRESET, override, preset
from adaptcl.errors import SettingError
from paper.columns import COLUMNS

_FOLDER = Path(__file__).parent / "experiments"
_KEYS = {
    "experiment": "title answers place remarks preset priority seeds settings profiled_model "
    "overview parts claims",
    "part": "title columns figures remarks x_label preset priority seeds settings baseline rows",
    "row": "label strategy settings seeds priority paper x",
    "claim": "text part row least_delta least_speed_up least_seeds speed_up delta",
}


AT_THE_END = "delta_late"
"""The difference between the means of the last five tests."""


@dataclass(frozen=True)
class ExperimentRow:
    """One line of a table or one curve of a figure."""

    label: str
    values: Mapping[str, Any]
    """Raw settings, including those of the preset, the experiment and the part."""
    seeds: tuple[int, ...]
    priority: int
    """Rows with a lower number run first."""
    paper: Mapping[str, float] | None = None
    """The paper's numbers by column; None if the paper has no such row."""
    x: float | None = None
    """The row's place on the horizontal axis of a trade-off figure."""

    def config(self, seed: int) -> Config:
        return configure(override(self.values, {"seed": seed}))


@dataclass(frozen=True)
class Part:
    """One table and the figures drawn of its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[ExperimentRow, ...]
    baseline: Mapping[str, Any] | None
    """Settings that turn a row into its baseline."""
    figures: tuple[str, ...]
    x_label: str
    remarks: str

    def baseline_of(self, row: ExperimentRow) -> ExperimentRow | None:
        """The row that gains and losses of a row are measured from."""
        if self.baseline is None:
            return None
        label, values = f"{row.label} (baseline)", override(row.values, self.baseline)
        return ExperimentRow(label, values, row.seeds, row.priority)

    def row(self, label: str) -> ExperimentRow:
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
    """The least difference in accuracy from the baseline, in points; negative allows a loss."""
    least_speed_up: float
    least_seeds: int
    speed_up: str = "speed_up"
    """The column of the speed-up: of whole runs, or to the baseline's accuracy."""
    delta: str = AT_THE_END
    """The column of the difference."""

    @property
    def is_at_the_end(self) -> bool:
        return self.delta == AT_THE_END


@dataclass(frozen=True)
class PlannedRun:
    """One run that an experiment needs."""

    config: Config
    label: str
    priority: int


@dataclass(frozen=True)
class Experiment:
    """The content of one TOML file."""

    name: str
    title: str
    answers: str
    """The paper's table or figure that it reproduces."""
    place: int
    """Its place in the document."""
    remarks: str
    parts: tuple[Part, ...]
    claims: tuple[Claim, ...]
    profiled_model: str
    """The model of which the training time by retention is measured; empty for none."""
    overview: tuple[str, ...] = ()
    """Titles of the parts in the document's first picture."""

    def part(self, title: str) -> Part:
        for part in self.parts:
            if part.title == title:
                return part
        raise SettingError(f"{self.name} has no part {title!r}.")

    def planned_runs(self) -> Iterator[PlannedRun]:
        """All runs, including those of baselines; the same run may come several times."""
        for part in self.parts:
            for row in part.rows:
                baseline = part.baseline_of(row)
                for each in (row, *([baseline] if baseline else [])):
                    label = f"{part.title}: {each.label}"
                    for seed in each.seeds:
                        yield PlannedRun(each.config(seed), label, each.priority)


def load_experiment(name: str) -> Experiment:
    return parse_experiment(name, (_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def load_experiments() -> list[Experiment]:
    """All experiments, in the order of the document."""
    found = [load_experiment(path.stem) for path in _FOLDER.glob("*.toml")]
    return sorted(found, key=lambda experiment: experiment.place)


def parse_experiment(name: str, text: str) -> Experiment:
    """Read the text of a TOML file and check every key."""
    try:
        table = tomllib.loads(text)
        _check_keys(table, "experiment")
        found = Experiment(
            name,
            table["title"],
            table["answers"],
            table["place"],
            table.get("remarks", "").strip(),
            tuple(_parse_part(part, table) for part in table.get("parts", ())),
            tuple(_parse_claim(claim) for claim in table.get("claims", ())),
            table.get("profiled_model", ""),
            tuple(table.get("overview", ())),
        )
        for title in found.overview:
            found.part(title)
        for claim in found.claims:
            found.part(claim.part).row(claim.row)
            _check_columns((claim.speed_up, claim.delta))
        return found
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"The experiment {name} is not TOML: {error}.") from None
    except KeyError as error:
        raise SettingError(f"The experiment {name} lacks the key {error}.") from None


def _parse_part(table: Mapping[str, Any], whole: Mapping[str, Any]) -> Part:
    _check_keys(table, "part")
    below = table.get("preset", whole.get("preset", DEFAULT_PRESET))
    settings = {**whole.get("settings", {}), **table.get("settings", {})}
    common = ExperimentRow(
        label="",
        values=override(preset(below), settings),
        seeds=tuple(table.get("seeds", whole.get("seeds", (1,)))),
        priority=table.get("priority", whole.get("priority", 5)),
    )
    columns = tuple(table.get("columns", ()))
    _check_columns(columns)
    return Part(
        table["title"],
        columns,
        tuple(_parse_row(row, common) for row in table["rows"]),
        table.get("baseline"),
        tuple(table.get("figures", ())),
        table.get("x_label", ""),
        table.get("remarks", "").strip(),
    )


def _parse_row(table: Mapping[str, Any], common: ExperimentRow) -> ExperimentRow:
    _check_keys(table, "row")
    _check_columns(table.get("paper", {}))
    strategy = {"strategy": table["strategy"]} if "strategy" in table else {}
    return replace(
        common,
        label=table["label"],
        values=override(common.values, {**table.get("settings", {}), **strategy}),
        seeds=tuple(table.get("seeds", common.seeds)),
        priority=table.get("priority", common.priority),
        paper=table.get("paper"),
        x=table.get("x"),
    )


def _parse_claim(table: Mapping[str, Any]) -> Claim:
    _check_keys(table, "claim")
    return Claim(**table)


def _check_columns(columns: Iterable[str]) -> None:
    for column in columns:
        if column not in COLUMNS:
            raise SettingError(f"There is no column {column!r}; there are {', '.join(COLUMNS)}.")


def _check_keys(table: Mapping[str, Any], kind: str) -> None:
    known = _KEYS[kind].split()
    for key in table:
        if key not in known:
            raise SettingError(f"{key!r} is no key of the {kind}; there are {', '.join(known)}.")
