"""The commands `adaptcl completion` and `adaptcl schema`: help for shells and editors."""

from __future__ import annotations

import argparse
import json
from typing import Any

from adaptcl.cli.parser import command_line
from adaptcl.config.catalogue import read_catalogue
from adaptcl.config.schema import settings_schema

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


def print_completion(_: argparse.Namespace) -> None:
    commands = _commands()
    settings = read_catalogue().settings.values()
    flags = []
    for name, parser in commands.items():
        known = {flag for action in parser._actions for flag in action.option_strings}
        if "--preset" in known:  # the command takes settings
            known |= {each.flag for each in settings}
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
    print(json.dumps(settings_schema(), indent=1, ensure_ascii=False))


def _commands() -> dict[str, Any]:
    """Every command's parser by name."""
    (subparsers,) = (
        action
        for action in command_line()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(subparsers.choices)
