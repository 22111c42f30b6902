"""The command line's flags, made from the declared settings, and what they come to.

Every setting has a flag of its name. Those of a strategy or codec of the user's own have flags too
as soon as the command line, or the file it names, names the class. Whatever is wrong with a command
line is told in one sentence, as for a settings file; `--help` has the rest.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from adaptcl import config
from adaptcl.config import Config
from adaptcl.config.effects import idle
from adaptcl.errors import SettingError
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.folder_reader import FIGURES, is_run_folder
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES


class Parser(argparse.ArgumentParser):
    """A parser that takes flags by their full names only and complains in one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self.expects: Callable[[Sequence[str]], None] = lambda words: None
        """Called with the words before they are parsed, to add flags that follow from them."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise SettingError(f"{message}; `{self.prog} --help` says more.")

    def parse_known_args(  # type: ignore[override]  # argparse's overloads, in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse has it, but whatever is left over is refused.

        Here, because each command is a parser of its own and only it knows which flags it has.
        """
        self.expects(sys.argv[1:] if args is None else args)
        options, unknown = super().parse_known_args(args, namespace)
        flag = next((word for word in unknown if word.startswith("-")), None)
        if flag is not None:
            raise _unknown_flag(flag.partition("=")[0], list(self._option_string_actions))
        if unknown:
            raise SettingError(f"{unknown[0]!r} is one word too many for this command.")
        return options, []


def add_settings(parser: Parser, without: Collection[str] = ()) -> None:
    """Give a command a settings file, a preset and a flag for every setting but some."""
    parser.add_argument("file", nargs="?", help="a TOML file of settings")
    parser.add_argument(
        "--preset", action=_Once, help=f"ready-made settings: {', '.join(config.presets())}"
    )
    ours = config.all_settings()
    group = parser.add_argument_group("settings (keys of the TOML file have the same names)")
    _add_flags(group, [each for each in ours.values() if each.name not in without])

    def add_own(words: Sequence[str]) -> None:
        known = config.all_settings(_named(words))
        own = [each for name, each in known.items() if name not in ours]
        if own:
            _add_flags(parser.add_argument_group("settings of your own classes"), own)
        parser.set_defaults(known=known)

    parser.expects = add_own


def _add_flags(group: argparse._ArgumentGroup, settings: Iterable[Setting]) -> None:
    ready = config.preset(config.DEFAULT_PRESET)
    for each in settings:
        group.add_argument(
            each.flag, dest=each.name, action=_Once, metavar="X", help=_help(each, ready)
        )


def _named(words: Sequence[str]) -> dict[str, Any]:
    """The strategy and codec that the words of a command will turn out to name, or their file.

    Every flag of a command with settings takes one word, so none has to be known for that.
    """
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in ("-h", "--help"):
            continue
        if flag.startswith("-"):
            given[flag] = value if equals else next(rest, "")
        else:
            given.setdefault("file", word)
    named: dict[str, Any] = {}
    with suppress(SettingError):  # which is for whoever reads it in earnest to complain of
        named = config.read_toml(Path(given["file"])) if "file" in given else {}
    flags = {"strategy": given.get("--strategy"), "codec": given.get("--codec")}
    return {**named, **{name: text for name, text in flags.items() if text is not None}}


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Raw values from the preset, the file and the flags; later ones win."""
    if options.file:
        gathered = config.read_toml(Path(options.file), options.preset)
    else:
        gathered = config.preset(options.preset or config.DEFAULT_PRESET)
    several: dict[str, Callable[[str], Any]] = {"strategy": str, "seed": _seeds}
    given = {
        name: several.get(name, options.known[name].parse)(text)
        for name, text in _flags(options).items()
    }
    return config.over(gathered, given)


def _flags(options: argparse.Namespace) -> dict[str, str]:
    """The settings that have a flag on this command line."""
    every = {name: getattr(options, name, None) for name in options.known}
    return {name: text for name, text in every.items() if text is not None}


@dataclass(frozen=True)
class Asked:
    """The runs that a command line asks for, one for each strategy and seed."""

    configs: list[Config]
    folders: list[Path]
    """New ones, in the same order."""
    figures: Path
    idle: list[str]
    """Sentences on settings that change nothing in any of these runs."""

    @property
    def over_seeds(self) -> bool:
        """Whether there are runs that differ in their seed alone."""
        return len({each.job.seed for each in self.configs}) > 1


def configurations(options: argparse.Namespace, *, seeds: bool = False) -> list[Config]:
    """One for each strategy that is named and, where the command takes several, for each seed."""
    gathered = values(options)
    drawn = gathered.get("seed")
    if not isinstance(drawn, list | tuple):
        drawn = [config.all_settings()["seed"].default if drawn is None else drawn]
    elif not seeds:
        raise SettingError("seed names several seeds, which only `adaptcl run` takes.")
    elif len(set(drawn)) < len(drawn):
        raise SettingError("seed names the same seed twice.")
    return [
        config.configure({**gathered, "strategy": name, "seed": seed}, options.known)
        for seed in drawn
        for name in _strategies(gathered)
    ]


def asked(options: argparse.Namespace, *, seeds: bool = False) -> Asked:
    """What to run and where to put it; an error if there is a run already."""
    configs = configurations(options, seeds=seeds)
    base = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    folders = _folders(base, configs)
    for path in folders:
        RunFolder.refuse_occupied(path)
    if len(folders) > 1 and is_run_folder(base):
        RunFolder.refuse_occupied(base)
    return Asked(configs, folders, base / FIGURES, without_effect(options, configs))


def without_effect(options: argparse.Namespace, configs: Sequence[Config]) -> list[str]:
    """Sentences on flags, and on what a file sets otherwise than it was, that change nothing in any
    of the runs."""
    of_file = config.departures(Path(options.file), options.preset) if options.file else []
    return idle(dict.fromkeys([*of_file, *_flags(options)]), configs)


def _folders(base: Path, configs: Sequence[Config]) -> list[Path]:
    """A folder for each run, below `base` where they are several: of its seed, of its strategy."""
    several_seeds = len({each.job.seed for each in configs}) > 1
    several = len({each.job.strategy for each in configs}) > 1
    folders = []
    for job in (each.job for each in configs):
        below = [f"seed-{job.seed}"] if several_seeds else []
        # A colon would be taken for a host by other programs, or for a drive.
        below += [job.strategy.replace(":", ".")] if several else []
        folders.append(base.joinpath(*below))
    return folders


def _seeds(text: str) -> Any:
    """One seed, or several with commas between."""
    parse = config.all_settings()["seed"].parse
    return [parse(each.strip()) for each in text.split(",")] if "," in text else parse(text)


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
    several = ", or several with commas between" if each.name in ("strategy", "seed") else ""
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
