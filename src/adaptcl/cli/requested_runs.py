"""The runs that a command line asks for, one for each strategy and seed, and who hears of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl.config.config import Config, all_settings, configure
from adaptcl.config.effects import changed_settings, explain_ineffective
from adaptcl.config.files import over_preset, read_toml
from adaptcl.config.grid import has_several, strategy_names
from adaptcl.custom import custom_function
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import FIGURES, folders_below, is_run_folder
from adaptcl.settings import Setting, is_custom


@dataclass(frozen=True)
class RequestedRuns:
    """The runs of one command, each in a new folder."""

    configs: list[Config]
    folders: list[Path]  # in the same order as `configs`
    figures: Path
    ineffective: list[str]  # sentences about settings that have no effect in any of these runs


def requested_runs(options: argparse.Namespace, *, seeds: bool = False) -> RequestedRuns:
    """Find what to run and where to put it; raise an error if there is a run already."""
    configs = requested_configs(options, seeds=seeds)
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    folders = folders_below(base, [(each.job.strategy, each.job.seed) for each in configs])
    for path in folders:
        RunFolder.refuse_unusable(path)
    if len(folders) > 1 and is_run_folder(base):
        RunFolder.refuse_unusable(base)
    return RequestedRuns(configs, folders, base / FIGURES, ineffective_settings(options, configs))


def requested_configs(options: argparse.Namespace, *, seeds: bool = False) -> list[Config]:
    """Make a configuration for each strategy and, if `seeds` allows several, for each seed."""
    values = requested_values(options)
    strategies = strategy_names(values)
    known = all_settings({**values, "strategy": ",".join(strategies)})
    _refuse_lists(values, known)
    chosen = values.get("seed", known["seed"].default)
    if not isinstance(chosen, list | tuple):
        chosen = [chosen]
    elif not seeds:
        raise SettingError("seed names several seeds, which only `adaptcl run` accepts.")
    elif len(set(chosen)) < len(chosen):
        raise SettingError("seed names the same seed twice.")
    return [
        configure({**values, "strategy": name, "seed": seed}, known)
        for seed in chosen
        for name in strategies
    ]


def ineffective_settings(options: argparse.Namespace, configs: Sequence[Config]) -> list[str]:
    """Write a sentence for each flag, and each change in the file, that has no effect."""
    in_file = changed_settings(Path(options.file), options.preset) if options.file else []
    return explain_ineffective(dict.fromkeys([*in_file, *options.flags]), configs)


def requested_values(options: argparse.Namespace) -> dict[str, Any]:
    """Gather raw values from the preset, the file and the flags; later ones win."""
    if options.file:
        return read_toml(Path(options.file), options.preset, options.flags)
    return over_preset(options.preset, options.flags)


def _refuse_lists(values: dict[str, Any], known: Mapping[str, Setting]) -> None:
    """Refuse several values where a run has one, and say which command takes them."""
    for name, value in values.items():
        if name in known and name not in ("strategy", "seed") and has_several(known[name], value):
            raise SettingError(
                f"{name} is {value!r}, but a run has one value; `adaptcl sweep` makes a run for "
                "each of several."
            )


def named_listeners(names: str) -> list[Listener]:
    """Import the listeners of a flag, with commas between."""
    found: list[Listener] = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if not is_custom(name):
            raise SettingError(
                f"--listen is {name!r}, but it must be a function as package.module:function."
            )
        found.append(custom_function(name, "a listener", ("event",), "nothing"))
    return found
