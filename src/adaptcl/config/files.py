"""Settings in TOML files: the presets that ship with the package, and the user's files on top."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaptcl.config.catalogue import read_catalogue
from adaptcl.errors import SettingError, hint_at_value
from adaptcl.settings import is_custom

DEFAULT_PRESET = "default"

_PRESETS = Path(__file__).with_name("presets")
_JOB, _CLOCK = ("model", "data"), ("train_time", "bandwidth_max")


def over_preset(name: str | None, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Put layers of raw values on top of those of a preset, by default the default one.

    The clock of a preset is made for its model and its data. Who names the preset wants its clock
    too. Who names none gets the clock of the default preset only for that job. For any other model
    or data these settings have their defaults, which measure the training.
    """
    values = preset(DEFAULT_PRESET if name is None else name)
    is_other_job = any(
        layer.get(each, values[each]) != values[each] for layer in layers for each in _JOB
    )
    if name is None and is_other_job:
        values = {each: value for each, value in values.items() if each not in _CLOCK}
    for layer in layers:
        values = override(values, layer)
    return values


def read_toml(
    path: Path, preset_name: str | None = None, flags: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Read the raw values of a TOML file, on top of its preset and below those of `flags`.

    The preset is the one called `preset_name`, else the one the file names by `preset = "name"`.
    """
    name, values = _read(path)
    return over_preset(preset_name or name, values, flags)


def preset_and_file(
    path: Path, preset_name: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the raw values of a TOML file, and those of the preset it stands on."""
    name, values = _read(path)
    job = {each: values[each] for each in _JOB if each in values}
    return over_preset(preset_name or name, job), values


def _read(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The preset that a TOML file names, and its other values."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a BOM
    except FileNotFoundError:
        hint = _hint_at_flag(str(path))
        raise SettingError(f"The settings file {path} does not exist{hint}") from None
    except IsADirectoryError:
        raise SettingError(f"{path} is a folder, not a settings file{_hint_in(path)}") from None
    except OSError as error:
        raise SettingError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The settings file {path} is not TOML: {error}.") from None
    return values.pop("preset", None), values


def _hint_in(folder: Path) -> str:
    """The end of a sentence about a folder, most often that of a run, in place of a file."""
    if (folder / "config.toml").is_file():
        return (
            f"; {folder}/config.toml has the settings of this run, and `adaptcl resume {folder}` "
            "goes on with it."
        )
    below = min([*folder.glob("*/config.toml"), *folder.glob("*/*/config.toml")], default=None)
    return "." if below is None else f"; the settings of a run in it are in {below}."


def _hint_at_flag(word: str) -> str:
    """The end of a sentence about a name that was given without its flag."""
    flags = dict.fromkeys(read_catalogue().strategies, "--strategy")
    flags |= dict.fromkeys(read_catalogue().models, "--model")
    flags |= dict.fromkeys(read_catalogue().data, "--data")
    flags |= dict.fromkeys(presets(), "--preset")
    if is_custom(word):
        return f"; to name a model or data of your own: --model {word} or --data {word}."
    return f"; did you mean {flags[word]} {word}?" if word in flags else "."


def presets() -> list[str]:
    return sorted(file.stem for file in _PRESETS.glob("*.toml"))


def preset(name: Any) -> dict[str, Any]:
    """Read the raw values of a preset, on top of the one that it may stand on."""
    if name not in presets():
        hint = hint_at_value(name, presets())
        raise SettingError(
            f"preset is {name!r}, but it must be one of {', '.join(presets())}{hint}"
        )
    values = tomllib.loads(_preset_text(name))
    below = values.pop("preset", None)
    return values if below is None else override(preset(below), values)


def preset_summary(name: str) -> str:
    """Say what a preset is for: the comment it begins with."""
    comments = itertools.takewhile(
        lambda line: line.startswith("#"), _preset_text(name).splitlines()
    )
    return " ".join(line.removeprefix("#").strip() for line in comments)


def override(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Put raw values on top of others; they also win over the sections of the lower ones."""
    merged = {**lower, **upper}
    for name in lower:
        if is_section(name):
            below = {k: v for k, v in section(name, lower[name]).items() if k not in upper}
            merged[name] = {**below, **section(name, upper.get(name, {}))}
    return merged


def named_strategies(values: Mapping[str, Any]) -> list[str]:
    """The strategies that raw values name, in a list or with commas between."""
    named = values.get("strategy", "")
    listed = named if isinstance(named, list | tuple) else str(named).split(",")
    return [str(name).strip() for name in listed]


def is_section(name: str) -> bool:
    """Say whether a key is the name of a strategy, which heads a section of its settings."""
    return name in read_catalogue().strategies or is_custom(name)


def section(name: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{name} is {values!r}, but a strategy's name must head a table of settings, [{name}]."
        )
    return values


def _preset_text(name: str) -> str:
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf-8")
