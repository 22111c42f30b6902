"""The settings of a run: gathered from all parts, checked, read from TOML and written to TOML.

Every setting has one name: as a key of a TOML file, as a flag of the command line and as an
argument of `adaptcl.run`. Later sources win: first the preset, then the file, then the flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptcl.config.files import (
    DEFAULT_PRESET,
    over_preset,
    override,
    preset,
    preset_summary,
    presets,
    read_toml,
)
from adaptcl.lazy import lazy_names

if TYPE_CHECKING:
    from adaptcl.config.config import Config, all_settings, configure, unknown_setting
    from adaptcl.config.job import JobSettings
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Config": "adaptcl.config.config",
            "JobSettings": "adaptcl.config.job",
            "all_settings": "adaptcl.config.config",
            "configure": "adaptcl.config.config",
            "unknown_setting": "adaptcl.config.config",
        },
    )

__all__ = [
    "DEFAULT_PRESET",
    "Config",
    "JobSettings",
    "all_settings",
    "configure",
    "over_preset",
    "override",
    "preset",
    "preset_summary",
    "presets",
    "read_toml",
    "unknown_setting",
]
