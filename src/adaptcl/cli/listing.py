"""The lists: `adaptcl strategies`, `prunings`, `codecs`, `models`, `presets` and `data`.

Custom strategies, pruning orders and codecs are listed too if they are named; then they are
imported and checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from adaptcl.config.catalogue import order_summary, read_catalogue
from adaptcl.config.files import preset_summary, presets
from adaptcl.errors import SettingError
from adaptcl.settings import is_custom


def list_names(options: argparse.Namespace) -> None:
    for word in options.custom:
        if not is_custom(word):
            raise SettingError(f"{word!r} is one word too many for this command.")
    entries = dict(_shipped(options.listed))
    entries |= {name: _custom_summary(options.listed, name) for name in options.custom}
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")


def _shipped(listed: str) -> Mapping[str, str]:
    if listed == "presets":
        return {name: preset_summary(name) for name in presets()}
    summaries: Mapping[str, str] = getattr(read_catalogue(), listed)
    return summaries


def _custom_summary(listed: str, name: str) -> str:
    from adaptcl.codecs import codec_class
    from adaptcl.pruning import custom_order
    from adaptcl.strategies import strategy_class

    if listed == "prunings":
        return order_summary(custom_order(name))
    return (strategy_class if listed == "strategies" else codec_class)(name).summary
