"""The commands that list what there is by name: `adaptcl strategies`, `prunings`, `codecs`, ….

Of strategies, pruning orders and codecs the user's own can be listed too, if they are named. That
they are listed says that they can be used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from adaptcl import config
from adaptcl.codecs import CODECS, codec_class
from adaptcl.errors import SettingError
from adaptcl.models import MODELS
from adaptcl.pruning import ORDERS, ServerOrder, WorkerOrder, custom_order
from adaptcl.settings import is_custom
from adaptcl.strategies import STRATEGIES, strategy_class

Summary = Callable[[str], str]


def add_commands(commands: Any) -> None:
    """Hang a command for each list into a command line."""
    lists: dict[str, tuple[Mapping[str, str], str, Summary | None]] = {
        "strategies": (
            {name: each.summary for name, each in STRATEGIES.items()},
            "methods of learning",
            lambda name: strategy_class(name).summary,
        ),
        "prunings": (
            {name: _order_summary(each) for name, each in ORDERS.items()},
            "pruning orders",
            lambda name: _order_summary(custom_order(name)),
        ),
        "codecs": (
            {name: each.summary for name, each in CODECS.items()},
            "ways updates travel",
            lambda name: codec_class(name).summary,
        ),
        "models": ({name: each.summary for name, each in MODELS.items()}, "models by name", None),
        "presets": (
            {name: config.preset_summary(name) for name in config.presets()},
            "ready-made settings",
            None,
        ),
    }
    for name, (entries, what, of_own) in lists.items():
        command = commands.add_parser(name, help=f"list the {what}")
        command.set_defaults(command=partial(_show, entries, of_own), own=[])
        if of_own:
            command.add_argument(
                "own",
                nargs="*",
                metavar="package.module:Class",
                help="list one of your own too, if it can be used",
            )


def show(entries: Mapping[str, str]) -> None:
    """Print names, each with its summary."""
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")


def _show(entries: Mapping[str, str], of_own: Summary | None, options: argparse.Namespace) -> None:
    if odd := next((word for word in options.own if not is_custom(word)), None):
        raise SettingError(f"{odd!r} is one word too many for this command.")
    show({**entries, **({name: of_own(name) for name in options.own} if of_own else {})})


def _order_summary(order: ServerOrder | WorkerOrder) -> str:
    who = "the server" if hasattr(order, "frozen") else "each worker"
    return f"{order.summary} (computed by {who})"
