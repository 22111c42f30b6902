"""The command line's flags, made from the declared settings, and what they come to.

Every setting has a flag of its name. Whatever is wrong with a command line is told in one
sentence, as for a settings file; `--help` has the rest.
"""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from adaptcl import config
from adaptcl.config import Config
from adaptcl.errors import SettingError
from adaptcl.idle_settings import idle
from adaptcl.run_folder import FIGURES, RunFolder, is_run_folder
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES


class Parser(argparse.ArgumentParser):
    """A parser that takes flags by their full names only and complains in one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise SettingError(f"{message}; `{self.prog} --help` says more.")

    def parse_known_args(  # type: ignore[override]  # argparse's overloads, in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse has it, but whatever is left over is refused.

        Here, because each command is a parser of its own and only it knows which flags it has.
        """
        options, unknown = super().parse_known_args(args, namespace)
        flag = next((word for word in unknown if word.startswith("-")), None)
        if flag is not None:
            raise _unknown_flag(flag.partition("=")[0], list(self._option_string_actions))
        if unknown:
            raise SettingError(f"{unknown[0]!r} is one word too many for this command.")
        return options, []


def add_settings(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Give a command a settings file, a preset and a flag for every setting but some."""
    parser.add_argument("file", nargs="?", help="a TOML file of settings")
    parser.add_argument(
        "--preset", action=_Once, help=f"ready-made settings: {', '.join(config.presets())}"
    )
    group = parser.add_argument_group("settings (keys of the TOML file have the same names)")
    ready = config.preset(config.DEFAULT_PRESET)
    for each in config.all_settings().values():
        if each.name in without:
            continue
        group.add_argument(
            each.flag,
            dest=each.name,
            action=_Once,
            metavar="X",
            help=_help(each, ready),
        )


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Raw values from the preset, the file and the flags; later ones win."""
    if options.file:
        gathered = config.read_toml(Path(options.file), options.preset)
    else:
        gathered = config.preset(options.preset or config.DEFAULT_PRESET)
    known = config.all_settings()
    given = {
        name: text if name == "strategy" else known[name].parse(text)
        for name, text in _flags(options).items()
    }
    return config.over(gathered, given)


def _flags(options: argparse.Namespace) -> dict[str, str]:
    """The settings that have a flag on this command line."""
    every = {name: getattr(options, name, None) for name in config.all_settings()}
    return {name: text for name, text in every.items() if text is not None}


@dataclass(frozen=True)
class Asked:
    """The runs that a command line asks for, one for each strategy."""

    configs: list[Config]
    folders: list[Path]
    """New ones, in the same order."""
    figures: Path
    idle: list[str]
    """Sentences on flags that change nothing in any of these runs."""


def configurations(options: argparse.Namespace) -> list[Config]:
    """One for each strategy that is named."""
    gathered = values(options)
    return [config.configure({**gathered, "strategy": name}) for name in _strategies(gathered)]


def asked(options: argparse.Namespace) -> Asked:
    """What to run and where to put it; an error if there is a run already."""
    configs = configurations(options)
    names = [each.job.strategy for each in configs]
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    folders = [base / name if len(names) > 1 else base for name in names]
    for path in folders:
        RunFolder.refuse_occupied(path)
    if len(folders) > 1 and is_run_folder(base):
        RunFolder.refuse_occupied(base)
    return Asked(configs, folders, base / FIGURES, idle(_flags(options), configs))


def _strategies(gathered: dict[str, Any]) -> list[str]:
    """The strategies that the values name: one, or several with commas between."""
    named = gathered.get("strategy", config.all_settings()["strategy"].default)
    if not isinstance(named, str):
        raise config.all_settings()["strategy"].refuse(named)
    names = [name.strip() for name in named.split(",")]
    if len(set(names)) < len(names):
        raise SettingError(f"strategy is {named!r}, but it must not name a strategy twice.")
    return names


def whole_number(text: str) -> int:
    """The number a flag of a command's own was given, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return value


def seconds(text: str) -> float:
    """The time a flag of a command's own was given, for argparse."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("it must be above 0")
    return value


class _Once(argparse.Action):
    """Refuses a flag that is given twice, rather than ignore one of the two."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        if before is not None:
            raise SettingError(f"{self.dest} is given twice, as {before!r} and as {values!r}.")
        setattr(namespace, self.dest, values)


def _help(each: Setting, ready: Mapping[str, Any]) -> str:
    shown = _shown(ready.get(each.name, each.default))
    for name, strategy in STRATEGIES.items():
        # A strategy may have a default of its own, or the preset one for this strategy alone.
        own = [s.default for s in declared(strategy.Settings) if s.name == each.name]
        value = own[0] if own and each.name not in ready else each.default
        value = ready.get(name, {}).get(each.name, value)
        if value != each.default:
            shown += f", with {name} {_shown(value)}"
    several = ", or several with commas between" if each.name == "strategy" else ""
    return f"{each.help}{several} [{each.words}; {shown}]".replace("%", "%%")


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list | tuple):
        return ",".join(map(_shown, default)) or "none"
    return str(default) or "none"


def _unknown_flag(flag: str, known: Sequence[str]) -> SettingError:
    """`known` are the flags that there are."""
    # Without the hyphens, which would make any two short flags alike.
    names = {each.lstrip("-"): each for each in known}
    near = difflib.get_close_matches(flag.lstrip("-"), names, n=1)
    if near:
        return SettingError(f"There is no flag {flag}; did you mean {names[near[0]]}?")
    return SettingError(f"There is no flag {flag}; --help lists those there are.")
