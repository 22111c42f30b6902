"""Commands that run nothing: lists, data sets to get, the completion of shells, the JSON schema.

The lists are `adaptcl strategies`, `prunings`, `codecs`, `models`, `presets` and `data`. What is
named is told with its settings. Custom strategies, pruning orders and codecs are then imported and
checked. Only that, and getting and packing data, imports PyTorch.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from adaptcl.cli.parser import CUSTOM, command_line
from adaptcl.cli.setting_flags import flags_of, help_of
from adaptcl.config.catalogue import order_summary, read_catalogue, settings_schema
from adaptcl.config.files import DEFAULT_PRESET, preset, preset_summary, presets
from adaptcl.errors import SettingError, hint_at_value
from adaptcl.settings import Setting, as_typed, declared, is_custom

_SCRIPT = """\
# Completion of the command adaptcl, for bash and (with bashcompinit) zsh.
# Use it by: eval "$(adaptcl completion)"
_adaptcl() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command=${{COMP_WORDS[1]}}
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    return
  fi
  case "$before" in
{values}
  esac
  if [[ $word == -* ]]; then
    case "$command" in
{flags}
    esac
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _adaptcl adaptcl
"""


def list_names(options: argparse.Namespace) -> None:
    entries = _shipped(options.listed)
    for name in options.names:
        if options.listed in CUSTOM and is_custom(name):
            _tell_custom(options.listed, name)
        elif name in entries:
            _tell(options.listed, name, entries[name])
        else:
            hint = hint_at_value(name, entries)
            raise SettingError(f"{name!r} is not one of the {options.listed}{hint}")
    if options.names:
        if options.listed == "strategies":
            print("`adaptcl run --help-all` lists the settings that all strategies share.")
        return
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")


def _tell(listed: str, name: str, summary: str) -> None:
    print(f"{name}: {summary}")
    if listed == "presets":
        print(tomli_w.dumps(preset(name)), end="")
    catalogue = read_catalogue()
    job = preset("default")  # what runs have unless they name another preset
    for each in catalogue.part_settings.get(listed, {}).get(name, []):
        setting = catalogue.settings[each]
        default = catalogue.strategy_defaults.get(name, {}).get(each, setting.default)
        default = job.get(name, {}).get(each, job.get(each, default))
        _print_setting(setting, default)


def _print_setting(setting: Setting, default: Any) -> None:
    text = help_of(setting, as_typed(default))
    print("  " + ", ".join(flags_of(setting)))
    print(textwrap.fill(text, 96, initial_indent=" " * 6, subsequent_indent=" " * 6))


def _shipped(listed: str) -> Mapping[str, str]:
    if listed == "presets":
        return {name: preset_summary(name) for name in presets()}
    summaries: Mapping[str, str] = getattr(read_catalogue(), listed)
    return summaries


def _tell_custom(listed: str, name: str) -> None:
    from adaptcl.codecs import codec_class
    from adaptcl.pruning import custom_order
    from adaptcl.strategies import strategy_class

    if listed == "prunings":
        print(f"{name}: {order_summary(custom_order(name))}")
        return
    found = (strategy_class if listed == "strategies" else codec_class)(name)
    print(f"{name}: {found.summary}")
    for each in declared(found.Settings):
        if each.name not in getattr(found, "unused", ()):
            _print_setting(each, each.default)


def download_data(options: argparse.Namespace) -> None:
    from adaptcl import data
    from adaptcl.report.progress import bar

    with bar(f"fetching {options.name}", in_bytes=True) as progress:
        path = data.get(options.name, Path(options.data_dir), options.url, progress)
    print(f"{options.name} is in {path}.")


def pack_data(options: argparse.Namespace) -> None:
    from adaptcl import data
    from adaptcl.quantities import volume
    from adaptcl.report.progress import bar

    file = Path(options.file)
    with bar(f"reading {options.name}") as progress:
        folder = Path(options.data_dir) if options.data_dir else None
        source = data.load(options.name, folder, progress)
    with bar(f"packing {options.name}") as progress:
        data.pack(source, file, options.quality, progress)
    how = "as PNG, without loss; --quality makes it smaller"
    if options.quality is not None:
        how = f"as JPEG of quality {options.quality}, which loses a little of every image"
    print(f"{options.name} is packed in {file} ({volume(file.stat().st_size)}), {how}.")


def print_completion(_: argparse.Namespace) -> None:
    commands = _commands()
    settings = read_catalogue().settings.values()
    flags = []
    for name, parser in commands.items():
        known = {flag for action in parser._actions for flag in action.option_strings}
        if "--preset" in known:  # the command takes settings
            known |= {flag for each in settings for flag in flags_of(each)}
        words = " ".join(sorted(known))
        flags.append(f'      {name}) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;')
    values = [
        f'    {each.flag}) COMPREPLY=($(compgen -W "{" ".join(each.allowed.choices)}" -- "$word"));'
        " return ;;"
        for each in settings
        if each.allowed.choices
    ]
    parts = {"commands": " ".join(commands), "values": "\n".join(values), "flags": "\n".join(flags)}
    print(_SCRIPT.format(**parts), end="")


def print_schema(_: argparse.Namespace) -> None:
    schema = settings_schema(preset(DEFAULT_PRESET))
    print(json.dumps(schema, indent=1, ensure_ascii=False))


def _commands() -> dict[str, Any]:
    (subparsers,) = (
        action
        for action in command_line()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(subparsers.choices)
