"""Flags for all settings, made from the catalogue.

Every setting has a flag. The settings of a custom strategy or codec have flags as soon as the
command line, or the file that it names, names the class. An error in a command line is reported in
one sentence.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_origin

from adaptcl.config.catalogue import Catalogue, read_catalogue
from adaptcl.config.files import DEFAULT_PRESET, named_strategies, preset, presets, read_toml
from adaptcl.errors import SettingError, nearest_setting
from adaptcl.settings import Allowed, Seconds, Setting, alternatives, as_typed, is_custom

COMMON = (
    *("strategy", "model", "workers", "rounds", "max_virtual_time", "seed", "codec"),
    *("data", "data_dir", "samples", "partition"),
    *("epochs", "batch_size", "learning_rate", "strength"),
    *("pruning", "pruning_interval", "min_retention"),
    *("sigma", "bandwidth_max", "links", "devices", "trace", "device"),
)
"""The settings that most people need: `--help` shows these, `--help-all` shows all."""

_SHORTER = {"max_virtual_time": ("--until",)}  # further flags for a setting

_FIRST_GROUPS = ("job", "data", "training", "pruning (strategy adaptcl)", "environment", "output")


class Parser(argparse.ArgumentParser):
    """A parser that accepts flags by their full names only and complains in one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self._excluded: Collection[str] | None = None
        """Settings without a flag; None if the command takes no settings at all."""
        self._splits_texts = False

    def take_settings(self, without: Collection[str] = (), *, texts: bool = False) -> None:
        """Accept a settings file, a preset and a flag for every setting, except some.

        The parsed flags are in `options.flags`, by the name of the setting. `texts` says whether
        a flag that is any text, such as a path, may have several with commas between, too.
        """
        self._excluded, self._splits_texts = without, texts
        self.add_argument("file", nargs="?", help="a TOML file of settings")
        self.add_argument("--preset", type=_preset_name, help=f"one of {', '.join(presets())}")
        self.add_argument("--help-all", action="help", help="show the flags of all settings")
        self.epilog = "Every setting can also be a key of the TOML file, with _ instead of -."

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; `{self.prog} --help` says more.")

    def parse_known_args(  # type: ignore[override]  # one signature for argparse's overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse as argparse does, but refuse what is left over.

        It is refused here because only the parser of the command knows the command's flags.
        """
        args = sys.argv[1:] if args is None else args
        settings = () if self._excluded is None else self._add_settings(args, self._excluded)
        options, unknown = super().parse_known_args(args, namespace)
        flag = next((word for word in unknown if word.startswith("-")), None)
        if flag is not None:
            raise _unknown_flag(flag.partition("=")[0], list(self._option_string_actions))
        if unknown:
            raise SettingError(f"{unknown[0]!r} was not expected; see `{self.prog} --help`.")
        if self._excluded is not None:
            options.flags = {k: v for k, v in vars(options).items() if k in settings}
        return options, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if value == "help":
                raise SettingError(
                    "`adaptcl --help` lists the commands; `adaptcl COMMAND --help` tells of one."
                )
            near = difflib.get_close_matches(value, action.choices, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"`{self.prog} --help` lists them all."
            raise SettingError(f"There is no command {value!r}; {hint}")
        super()._check_value(action, value)

    def _add_settings(self, words: Sequence[str], excluded: Collection[str]) -> list[str]:
        """Add a flag for every setting, and give the names of the settings.

        The flags are added when the words are known, because these say which custom settings there
        are, and whether the help shows all flags.
        """
        catalogue = read_catalogue()
        settings = [each for name, each in catalogue.settings.items() if name not in excluded]
        shown = catalogue.settings if "--help-all" in words else COMMON
        preset_values = preset(DEFAULT_PRESET)
        names = dict.fromkeys([*_FIRST_GROUPS, *(each.group for each in settings)])
        groups = {name: self.add_argument_group(name) for name in names}
        for each in settings:
            default = default_of(each, catalogue, preset_values)
            text = help_of(each, default) if each.name in shown else argparse.SUPPRESS
            _add_flag(groups[each.group], each, text, splits_texts=self._splits_texts)
        group = self.add_argument_group("settings of your own classes")
        custom = _custom_settings(words, catalogue.settings)
        for each in custom:
            text = help_of(each, as_typed(each.default))
            _add_flag(group, each, text, splits_texts=self._splits_texts)
        return [each.name for each in (*settings, *custom)]


def _add_flag(
    group: argparse._ArgumentGroup, each: Setting, text: str, *, splits_texts: bool
) -> None:
    text = text.replace("%", "%%")
    options: dict[str, Any] = {"dest": each.name, "default": argparse.SUPPRESS, "help": text}
    if each.kind is bool:
        group.add_argument(each.flag, action=argparse.BooleanOptionalAction, **options)
        return
    is_text = each.kind is str and each.allowed.choices is None
    parse: Callable[[Setting, str], Any] = _one_or_several
    if each.name == "strategy":
        parse = _strategies
    elif is_text and not splits_texts:
        parse = Setting.parse
    shorter = _SHORTER.get(each.name, ())
    named = replace(each, name=shorter[0]) if shorter else each
    options |= {"type": lambda text: parse(named, text), "metavar": "X"}
    group.add_argument(each.flag, *shorter, **options)


def help_of(each: Setting, default: str) -> str:
    several = "; several, with commas between, make a run each"
    several = several if each.name in ("strategy", "seed") else ""
    kind = "" if each.kind is bool or each.words == "text" else f"{each.words}; "
    return f"{each.help}{several} [{kind}default {default}]"


def flags_of(each: Setting) -> tuple[str, ...]:
    """Its flag; of one that is true or false also the flag for false."""
    negated = f"--no-{each.flag.removeprefix('--')}"
    return (each.flag, negated) if each.kind is bool else (each.flag,)


def number(kind: Any, **limits: float) -> Callable[[str], Any]:
    """The type of a flag that is a number in a range, or a time, but no setting."""
    meant = Setting("", kind, None, "", Allowed(**limits))  # type: ignore[arg-type]

    def parse(text: str) -> Any:
        try:
            return meant.parse(text)
        except SettingError:
            raise argparse.ArgumentTypeError(
                f"it is {text!r}, but it must be {meant.words}"
            ) from None

    return parse


whole_number = number(int, at_least=1)
duration_s = number(Seconds, above=0)


def _preset_name(name: str) -> str:
    preset(name)  # raises an error if there is none of that name
    return name


def _strategies(strategy: Setting, text: str) -> str:
    for name in text.split(","):
        strategy.parse(name.strip())
    return text


def _one_or_several(each: Setting, text: str) -> Any:
    """Parse one value, or a list of several for a setting that is no list itself."""
    is_list = any(get_origin(kind) is tuple for kind in alternatives(each.kind))
    if is_list or "," not in text:
        return each.parse(text)
    return [each.parse(part.strip()) for part in text.split(",")]


def _custom_settings(words: Sequence[str], shipped: Mapping[str, Setting]) -> list[Setting]:
    """The settings of the custom strategies and codecs that a command line, or its file, names."""
    named: dict[str, Any] = {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--strategy", "--codec"):
        parser.add_argument(flag, nargs="?", default=argparse.SUPPRESS)
    flags, others = parser.parse_known_args(words)
    for word in others:
        with suppress(SettingError, OSError):  # reported when the file is read in earnest
            if Path(word).is_file():
                named = {**read_toml(Path(word)), **named}
    named |= vars(flags)
    if not any(map(is_custom, [*named_strategies(named), named.get("codec")])):
        return []
    from adaptcl.config.config import all_settings  # imports PyTorch, as the class will

    return [each for name, each in all_settings(named).items() if name not in shipped]


def default_of(each: Setting, catalogue: Catalogue, preset_values: Mapping[str, Any]) -> str:
    """Show the default of a setting, and those that strategies have instead."""
    shown = as_typed(preset_values.get(each.name, each.default))
    for name in catalogue.strategies:
        value = each.default
        if each.name not in preset_values:
            value = catalogue.strategy_defaults.get(name, {}).get(each.name, value)
        value = preset_values.get(name, {}).get(each.name, value)
        if value != each.default:
            shown += f", with {name} {as_typed(value)}"
    return shown


_SAID_OTHERWISE = {
    "--resume": "`adaptcl resume RUN` continues a run.",
    "--no-figures": "`--figures none` draws none.",
}
"""What to say to flags that other programs have."""


def _unknown_flag(flag: str, known: Iterable[str]) -> SettingError:
    if flag in _SAID_OTHERWISE:
        return SettingError(f"There is no flag {flag}; {_SAID_OTHERWISE[flag]}")
    # Without the hyphens, which make any two short flags alike.
    names = {each.lstrip("-").replace("-", "_"): each for each in known}
    near = nearest_setting(flag.lstrip("-"), names)
    if near:
        return SettingError(f"There is no flag {flag}; did you mean {names[near]}?")
    return SettingError(f"There is no flag {flag}; --help lists those there are.")
