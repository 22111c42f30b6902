"""What a setting comes to in a run: its value as a text, or nothing where it has no effect.

A setting that does nothing in a run, such as σ where every bandwidth is given, tells nothing about
it, and runs that differ in nothing else do not differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaptcl.config.idle import has_effect
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report.runs import Run
from adaptcl.run_folder.network_file import is_network_run
from adaptcl.settings import declared

NONE = "none"
"""Stands for a setting that is left out or empty."""

_SIMULATED = frozenset(each.name for each in declared(EnvironmentSettings))
"""Settings that a run across a network has no use for."""


def effective(run: Run, name: str) -> str | None:
    """The value of a setting as a text; None where the setting does nothing."""
    if name in _SIMULATED and is_network_run(run.folder):
        return None
    if not has_effect(name, run.config):
        return None
    return _value_text(run.config.get(name))


def differing(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Those of the settings that have an effect in several of the runs, and not the same."""
    return [name for name in names if len({effective(run, name) for run in runs} - {None}) > 1]


def _value_text(value: Any) -> str:
    """As it would stand on the command line."""
    if value in (None, "", [], ()):
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        between = ";" if any(isinstance(each, list | tuple) for each in value) else ","
        return between.join(map(_value_text, value))
    return str(value)
