"""All settings, strategies, pruning orders, codecs, models and data sets, without PyTorch.

They are declared in modules that import PyTorch, which takes seconds. So names, help texts and
summaries are also kept in `catalogue.json`, and `adaptcl --help`, the lists and the message for a
misspelled flag are made from that file alone. `catalogue_generator.py` writes it. A run uses the
declarations themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, get_origin

from adaptcl.settings import KINDS, Allowed, Setting, alternatives

FILE = Path(__file__).with_name("catalogue.json")

ENVIRONMENT = "environment"
"""The group of the settings that describe simulated machines."""

Summaries = Mapping[str, str]
"""One line about each thing that has a name."""


@dataclass(frozen=True)
class Catalogue:
    """The content of the file."""

    settings: Mapping[str, Setting]
    """By name, without their conditions."""
    strategy_defaults: Mapping[str, Mapping[str, Any]]
    """By strategy, the defaults that differ from those of `settings`."""
    part_settings: Mapping[str, Mapping[str, list[str]]]
    """By kind of part and name, its settings, as far as they have an effect on it."""
    strategies: Summaries
    prunings: Summaries
    codecs: Summaries
    models: Summaries
    data: Summaries


@cache
def read_catalogue() -> Catalogue:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    settings = {name: _setting(name, each) for name, each in content.pop("settings").items()}
    return Catalogue(settings, **content)


def kind_name(kind: Any) -> str:
    """Name a type of settings in the file."""
    return " | ".join(
        str(each) if get_origin(each) else str(each.__name__) for each in alternatives(kind)
    )


def order_summary(order: Any) -> str:
    """Describe a pruning order in one line, with who computes it."""
    who = "the server" if hasattr(order, "frozen") else "each worker"
    return f"{order.summary} (computed by {who})"


def _setting(name: str, entry: Mapping[str, Any]) -> Setting:
    allowed = dict(entry["allowed"])
    if "choices" in allowed:
        allowed["choices"] = tuple(allowed["choices"])
    kinds = {kind_name(each): each for each in (*KINDS, type(None))}
    kind = reduce(or_, [kinds[each] for each in entry["kind"].split(" | ")])
    found = Setting(name, kind, None, entry["help"], Allowed(**allowed), group=entry["group"])
    return replace(found, default=found.checked(entry["default"]))  # lists become tuples
