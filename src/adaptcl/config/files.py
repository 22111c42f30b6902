"""Settings in TOML files: the presets that ship with the package, and the user's own on top."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from adaptcl.config.config import over, sections_for
from adaptcl.config.known import all_settings
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, declared
from adaptcl.strategies import strategy_class

DEFAULT_PRESET = "default"

_SEVERAL = ("strategy", "seed")
"""Of which a file may name several, for as many runs."""


def read_toml(path: Path, preset_name: str | None = None) -> dict[str, Any]:
    """The raw values of a TOML file, on top of those of a preset.

    That is the preset called `preset_name`, else the one the file names by `preset = "name"`,
    else the default one.
    """
    values = _file_values(path)
    named = values.pop("preset", DEFAULT_PRESET)
    return over(preset(preset_name or named), values)


def departures(path: Path, preset_name: str | None = None) -> list[str]:
    """The settings that a TOML file has otherwise than its preset, or the default where that has
    none; without those of its sections, each of which is for one strategy."""
    values = _file_values(path)
    below = preset(preset_name or values.pop("preset", DEFAULT_PRESET))
    known = all_settings(values)
    chosen = [name.strip() for name in str(values.get("strategy", "")).split(",") if name.strip()]
    usual = [_usual(below, each, known) for each in chosen or [known["strategy"].default]]
    return [
        name
        for name, value in values.items()
        if name in known
        and name not in _SEVERAL
        and known[name].checked(value) not in [known[name].checked(each[name]) for each in usual]
    ]


def _usual(
    preset_values: Mapping[str, Any], strategy: str, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """By name what a setting is with a preset and a strategy, which may have its own defaults."""
    own = {each.name: each.default for each in declared(strategy_class(strategy).Settings)}
    usual = {each.name: each.default for each in known.values()} | own | dict(preset_values)
    for section in sections_for(strategy):
        usual |= preset_values.get(section, {})
    return usual


def _file_values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"The settings file {path} does not exist.") from None
    except OSError as error:
        raise SettingError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The settings file {path} is not TOML: {error}.") from None


def presets() -> list[str]:
    """The names of the ready-made presets."""
    files = resources.files("adaptcl.config") / "presets"
    return sorted(os.path.splitext(f.name)[0] for f in files.iterdir() if f.name.endswith(".toml"))


def preset(name: Any) -> dict[str, Any]:
    """The raw values of a ready-made preset."""
    if name not in presets():
        raise SettingError(f"preset is {name!r}, but it must be one of {', '.join(presets())}.")
    return tomllib.loads(_preset_text(name))


def preset_summary(name: str) -> str:
    """What a preset is for: the comment it begins with."""
    comments = itertools.takewhile(
        lambda line: line.startswith("#"), _preset_text(name).splitlines()
    )
    return " ".join(line.removeprefix("#").strip() for line in comments)


def _preset_text(name: str) -> str:
    file = resources.files("adaptcl.config") / "presets" / f"{name}.toml"
    return file.read_text(encoding="utf-8")
