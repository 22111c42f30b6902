"""The settings of a run: gathered from all parts, read from TOML, written to TOML.

Keys are flat, and each means one thing wherever it stands: as a key of a TOML file, as a flag of
the command line, as an argument from Python. Later sources win: the preset, then the file, then
the flags.
"""

from adaptcl.config.config import Config, configure, over
from adaptcl.config.files import (
    DEFAULT_PRESET,
    departures,
    preset,
    preset_summary,
    presets,
    read_toml,
)
from adaptcl.config.job import JobSettings
from adaptcl.config.known import all_settings, unknown_setting

__all__ = [
    "DEFAULT_PRESET",
    "Config",
    "JobSettings",
    "all_settings",
    "configure",
    "departures",
    "over",
    "preset",
    "preset_summary",
    "presets",
    "read_toml",
    "unknown_setting",
]
