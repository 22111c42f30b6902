"""The runs that a command line asks for: one for each strategy and seed, each with its folder."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl import config
from adaptcl.config import Config
from adaptcl.config.effects import changed_settings, explain_ineffective
from adaptcl.errors import SettingError
from adaptcl.runs.folder import FIGURES, RunFolder, folders_below, is_run_folder


@dataclass(frozen=True)
class RequestedRuns:
    """The runs of one command, each in a new folder."""

    configs: list[Config]
    folders: list[Path]
    """In the same order as `configs`."""
    figures: Path
    ineffective: list[str]
    """Sentences about settings that have no effect in any of these runs."""


def requested_runs(options: argparse.Namespace, *, seeds: bool = False) -> RequestedRuns:
    """Find what to run and where to put it; raise an error if there is a run already."""
    configs = requested_configs(options, seeds=seeds)
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    folders = folders_below(base, [(each.job.strategy, each.job.seed) for each in configs])
    for path in folders:
        RunFolder.refuse_occupied(path)
    if len(folders) > 1 and is_run_folder(base):
        RunFolder.refuse_occupied(base)
    return RequestedRuns(configs, folders, base / FIGURES, ineffective_settings(options, configs))


def requested_configs(options: argparse.Namespace, *, seeds: bool = False) -> list[Config]:
    """Make a configuration for each strategy and, if `seeds` allows several, for each seed."""
    values = _values(options)
    known = config.all_settings(values)
    chosen = values.get("seed", known["seed"].default)
    if not isinstance(chosen, list | tuple):
        chosen = [chosen]
    elif not seeds:
        raise SettingError("seed names several seeds, which only `adaptcl run` accepts.")
    elif len(set(chosen)) < len(chosen):
        raise SettingError("seed names the same seed twice.")
    return [
        config.configure({**values, "strategy": name, "seed": seed}, known)
        for seed in chosen
        for name in _strategies(values)
    ]


def ineffective_settings(options: argparse.Namespace, configs: Sequence[Config]) -> list[str]:
    """Write a sentence for each flag, and each change in the file, that has no effect."""
    in_file = changed_settings(Path(options.file), options.preset) if options.file else []
    return explain_ineffective(dict.fromkeys([*in_file, *options.flags]), configs)


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Gather raw values from the preset, the file and the flags; later ones win."""
    if options.file:
        return config.read_toml(Path(options.file), options.preset, options.flags)
    return config.over_preset(options.preset, options.flags)


def _strategies(values: dict[str, Any]) -> list[str]:
    strategy = config.all_settings()["strategy"]
    named = values.get("strategy", strategy.default)
    if not isinstance(named, str):
        raise strategy.refuse(named)
    names = [name.strip() for name in named.split(",")]
    if len(set(names)) < len(names):
        raise SettingError(f"strategy is {named!r}, but it must not name a strategy twice.")
    return names
