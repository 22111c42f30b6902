"""Flags for all settings, made from the catalogue.

Every setting has a flag. The settings of a custom strategy or codec have flags as soon as the
command line, or the file that it names, names the class. An error in a command line is reported in
one sentence.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from adaptcl.config.catalogue import Catalogue, read_catalogue
from adaptcl.config.files import (
    DEFAULT_PRESET,
    named_strategies,
    preset,
    presets,
    read_toml,
)
from adaptcl.errors import SettingError
from adaptcl.settings import Allowed, Seconds, Setting, as_typed, is_custom
from adaptcl.suggestions import nearest_setting

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

    def take_settings(self, without: Collection[str] = ()) -> None:
        """Accept a settings file, a preset and a flag for every setting, except some.

        The parsed flags are in `options.flags`, by the name of the setting.
        """
        self._excluded = without
        self.add_argument("file", nargs="?", help="a TOML file of settings")
        self.add_argument(
            "--preset", action=_Once, type=_preset_name, help=f"one of {', '.join(presets())}"
        )
        self.add_argument(
            "--help-all", action=_HelpAll, help="show the flags of all settings, and exit"
        )
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
        settings = {} if self._excluded is None else self._add_settings(args, self._excluded)
        args = [*_without_truth(args, settings)]
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
            near = difflib.get_close_matches(value, action.choices, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"`{self.prog} --help` lists them all."
            raise SettingError(f"There is no command {value!r}; {hint}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        """Show the flags of common settings only."""
        hidden = [
            action
            for action in self._actions
            if isinstance(action, _Setting) and not action.is_common
        ]
        texts = [action.help for action in hidden]
        for action in hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in zip(hidden, texts, strict=True):
                action.help = text

    def format_full_help(self) -> str:
        return super().format_help()

    def _add_settings(
        self, words: Sequence[str], excluded: Collection[str]
    ) -> Mapping[str, Setting]:
        catalogue = read_catalogue()
        settings = {k: v for k, v in catalogue.settings.items() if k not in excluded}
        groups = dict.fromkeys([*_FIRST_GROUPS, *(each.group for each in settings.values())])
        preset_values = preset(DEFAULT_PRESET)
        for name in groups:
            group = self.add_argument_group(name)
            for each in settings.values():
                if each.group == name:
                    self._add_flag(group, each, _default(each, catalogue, preset_values))
        alone = {f for action in self._actions if action.nargs == 0 for f in action.option_strings}
        custom = _custom_settings(words, catalogue.settings, alone)
        group = self.add_argument_group("settings of your own classes")
        for each in custom.values():
            self._add_flag(group, each, as_typed(each.default), is_common=True)
        return {**settings, **custom}

    @staticmethod
    def _add_flag(
        group: argparse._ArgumentGroup, each: Setting, default: str, *, is_common: bool = False
    ) -> None:
        several = ", or several with commas between" if each.name in ("strategy", "seed") else ""
        kind = "" if each.words == "text" else f"{each.words}; "
        parsers = {"strategy": _strategies, "seed": _seeds}
        parse = parsers.get(each.name, Setting.parse)
        typed = replace(each, name=_SHORTER[each.name][0]) if each.name in _SHORTER else each
        if each.kind is bool:
            group.add_argument(
                *flags_of(each),
                dest=each.name,
                action=_Switch,
                is_common=is_common or each.name in COMMON,
                default=argparse.SUPPRESS,
                nargs=0,
                help=f"{each.help} [default {default}]".replace("%", "%%"),
            )
            return
        group.add_argument(
            each.flag,
            *_SHORTER.get(each.name, ()),
            dest=each.name,
            action=_Setting,
            is_common=is_common or each.name in COMMON,
            type=lambda text: parse(typed, text),
            default=argparse.SUPPRESS,
            metavar="X",
            help=f"{each.help}{several} [{kind}default {default}]".replace("%", "%%"),
        )


class _Once(argparse.Action):
    """A flag that must not be given twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None:
            raise SettingError(f"{self.dest} is given twice, as {before!r} and as {values!r}.")
        setattr(namespace, self.dest, values)


class _Setting(_Once):
    """The flag of a setting."""

    def __init__(self, *, is_common: bool, **options: Any) -> None:
        super().__init__(**options)
        self.is_common = is_common


class _Switch(_Setting):
    """The flags of a setting that is true or false: `--grow` and `--no-grow`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, option_string == self.option_strings[0], option_string)


class _HelpAll(argparse.Action):
    """`--help-all`: the help with the flags of all settings."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_full_help(), end="")
        parser.exit()


def flags_of(each: Setting) -> tuple[str, ...]:
    """Its flag; of one that is true or false also the flag for false."""
    negated = f"--no-{each.flag.removeprefix('--')}"
    return (each.flag, negated) if each.kind is bool else (each.flag,)


def _without_truth(words: Sequence[str], settings: Mapping[str, Setting]) -> Iterator[str]:
    """Words in which `--grow true` is `--grow`, and `--grow=false` is `--no-grow`."""
    switches = {each.flag: each for each in settings.values() if each.kind is bool}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, text = word.partition("=")
        if flag not in switches:
            yield word
            continue
        if not equals and rest and rest[0].lower() in ("true", "false"):
            text = rest.pop(0)
        negated = text and not switches[flag].parse(text)
        yield flags_of(switches[flag])[bool(negated)]


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


def _seeds(seed: Setting, text: str) -> Any:
    """Parse one seed, or a list of several."""
    return (
        [seed.parse(each.strip()) for each in text.split(",")] if "," in text else seed.parse(text)
    )


def _custom_settings(
    words: Sequence[str], shipped: Mapping[str, Setting], alone: Collection[str]
) -> Mapping[str, Setting]:
    """Find the settings of the custom strategies and codecs that a command line names.

    Flags in `alone` take no word.
    """
    named = _named_classes(words, alone)
    if not any(map(is_custom, [*named_strategies(named), named.get("codec")])):
        return {}
    from adaptcl.config.config import all_settings  # imports PyTorch, as the class will

    return {name: each for name, each in all_settings(named).items() if name not in shipped}


def _named_classes(words: Sequence[str], alone: Collection[str]) -> dict[str, Any]:
    """Find the strategy and the codec that a command line, or its file, names."""
    flags: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in alone or word in ("true", "false"):
            continue
        if flag.startswith("-"):
            flags[flag] = value if equals else next(rest, "")
        else:
            flags.setdefault("file", word)
    named: dict[str, Any] = {}
    with suppress(SettingError):  # reported when the file is read in earnest
        named = read_toml(Path(flags["file"])) if "file" in flags else {}
    given = {"strategy": flags.get("--strategy"), "codec": flags.get("--codec")}
    return {**named, **{name: text for name, text in given.items() if text is not None}}


def _default(each: Setting, catalogue: Catalogue, preset_values: Mapping[str, Any]) -> str:
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


def _unknown_flag(flag: str, known: Iterable[str]) -> SettingError:
    # Without the hyphens, which make any two short flags alike.
    names = {each.lstrip("-").replace("-", "_"): each for each in known}
    near = nearest_setting(flag.lstrip("-"), names)
    if near:
        return SettingError(f"There is no flag {flag}; did you mean {names[near]}?")
    return SettingError(f"There is no flag {flag}; --help lists those there are.")
