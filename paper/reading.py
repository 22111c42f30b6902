"""Reading an experiment's TOML file, with every key checked.

title, answers, place, remarks      about the whole
preset, priority, seeds, settings   hold for every row that does not say otherwise
profiled_model                      where a training time is measured rather than a run made
overview                            titles of the parts whose curves make the first picture
[[parts]]         title, columns, figures, remarks, x_label, priority, settings, preset
[parts.baseline]  settings of what each row is held against
[[parts.rows]]    label, strategy, settings, seeds, priority, paper, x
[[claims]]        text, part, row, least_delta, least_speed_up, least_seeds
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from adaptcl import config
from adaptcl.errors import SettingError
from paper.columns import COLUMNS
from paper.experiment import Claim, Experiment, Part, TableRow

_KEYS = {
    "experiment": "title answers place remarks preset priority seeds settings profiled_model "
    "overview parts claims",
    "part": "title columns figures remarks x_label preset priority seeds settings baseline rows",
    "row": "label strategy settings seeds priority paper x",
    "claim": "text part row least_delta least_speed_up least_seeds",
}


def names() -> list[str]:
    """The names of all experiments, in the order of the document."""
    return [experiment.name for experiment in load_all()]


def load(name: str) -> Experiment:
    """The experiment of that name, as it comes with the package."""
    file = resources.files("paper") / "experiments" / f"{name}.toml"
    return parse(name, file.read_text(encoding="utf-8"))


def load_all() -> list[Experiment]:
    """All experiments, in the order of the document."""
    files = (resources.files("paper") / "experiments").iterdir()
    found = [file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")]
    return sorted(map(load, found), key=lambda experiment: experiment.place)


def parse(name: str, text: str) -> Experiment:
    """The experiment that a TOML text describes."""
    try:
        given = tomllib.loads(text)
        _check_keys(given, "experiment")
        parts = tuple(_part(part, given) for part in given.get("parts", ()))
        found = Experiment(
            name,
            given["title"],
            given["answers"],
            given["place"],
            given.get("remarks", "").strip(),
            parts,
            tuple(_claim(claim) for claim in given.get("claims", ())),
            given.get("profiled_model", ""),
            tuple(given.get("overview", ())),
        )
        for title in found.overview:
            found.part(title)
        for claim in found.claims:
            found.part(claim.part).row(claim.row)
        return found
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"The experiment {name} is not TOML: {error}.") from None
    except KeyError as error:
        raise SettingError(f"The experiment {name} lacks the key {error}.") from None


def _part(given: Mapping[str, Any], whole: Mapping[str, Any]) -> Part:
    _check_keys(given, "part")
    preset = given.get("preset", whole.get("preset", config.DEFAULT_PRESET))
    common = TableRow(
        label="",
        values=config.override(
            config.preset(preset), {**whole.get("settings", {}), **given.get("settings", {})}
        ),
        seeds=tuple(given.get("seeds", whole.get("seeds", (1,)))),
        priority=given.get("priority", whole.get("priority", 5)),
    )
    columns = tuple(given.get("columns", ()))
    _known_columns(columns)
    return Part(
        given["title"],
        columns,
        tuple(_row(row, common) for row in given["rows"]),
        given.get("baseline"),
        tuple(given.get("figures", ())),
        given.get("x_label", ""),
        given.get("remarks", "").strip(),
    )


def _row(given: Mapping[str, Any], common: TableRow) -> TableRow:
    _check_keys(given, "row")
    _known_columns(given.get("paper", {}))
    return replace(
        common,
        label=given["label"],
        values=config.override(
            common.values,
            {
                **given.get("settings", {}),
                **({"strategy": given["strategy"]} if "strategy" in given else {}),
            },
        ),
        seeds=tuple(given.get("seeds", common.seeds)),
        priority=given.get("priority", common.priority),
        paper=given.get("paper"),
        x=given.get("x"),
    )


def _claim(given: Mapping[str, Any]) -> Claim:
    _check_keys(given, "claim")
    return Claim(**given)


def _known_columns(columns: Sequence[str] | Mapping[str, Any]) -> None:
    for column in columns:
        if column not in COLUMNS:
            raise SettingError(f"There is no column {column!r}; there are {', '.join(COLUMNS)}.")


def _check_keys(given: Mapping[str, Any], what: str) -> None:
    known = _KEYS[what].split()
    for key in given:
        if key not in known:
            raise SettingError(f"{key!r} is no key of the {what}; there are {', '.join(known)}.")
