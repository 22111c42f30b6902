"""Settings in TOML files: the presets that ship with the package, and the user's files on top."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptcl.config.catalogue import read_catalogue
from adaptcl.errors import SettingError
from adaptcl.settings import is_custom

DEFAULT_PRESET = "default"

_PRESETS = Path(__file__).with_name("presets")


def read_toml(path: Path, preset_name: str | None = None) -> dict[str, Any]:
    """Read the raw values of a TOML file, on top of those of a preset."""
    return override(*preset_and_file(path, preset_name))


def preset_and_file(
    path: Path, preset_name: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the raw values of a TOML file and of its preset.

    That is the preset called `preset_name`, else the one the file names by `preset = "name"`,
    else the default one.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"The settings file {path} does not exist.") from None
    except OSError as error:
        raise SettingError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The settings file {path} is not TOML: {error}.") from None
    named = values.pop("preset", DEFAULT_PRESET)
    return preset(preset_name or named), values


def presets() -> list[str]:
    return sorted(file.stem for file in _PRESETS.glob("*.toml"))


def preset(name: Any) -> dict[str, Any]:
    """Read the raw values of a preset."""
    if name not in presets():
        raise SettingError(f"preset is {name!r}, but it must be one of {', '.join(presets())}.")
    return tomllib.loads(_preset_text(name))


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
            below = {k: v for k, v in lower[name].items() if k not in upper}
            merged[name] = {**below, **section(name, upper.get(name, {}))}
    return merged


def is_section(name: str) -> bool:
    """Say whether a key is the name of a strategy, which heads a section of its settings."""
    return name in read_catalogue().strategies or is_custom(name)


def section(name: str, values: Any) -> Mapping[str, Any]:
    """Check that the value of a section is a table."""
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{name} is {values!r}, but a strategy's name must head a table of settings, [{name}]."
        )
    return values


def _preset_text(name: str) -> str:
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf-8")
