"""Writes `src/adaptcl/config/catalogue.json` from the declarations: `make catalogue`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from adaptcl.codecs import CODECS
from adaptcl.config.catalogue import ENVIRONMENT, FILE, kind_name, order_summary
from adaptcl.config.config import all_settings
from adaptcl.data import DATASETS
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.models import MODELS
from adaptcl.pruning import ORDERS
from adaptcl.settings import Setting, declared
from adaptcl.strategies import STRATEGIES
from adaptcl.training import Recipe

_STRATEGY_GROUPS = {"adaptcl": "pruning (strategy adaptcl)"}
"""Headings for the settings of single strategies; without an entry it is `strategy NAME`."""


def catalogue_text() -> str:
    known = all_settings()
    strategy_defaults = {
        name: {
            each.name: each.default
            for each in declared(strategy.Settings)
            if each.default != known[each.name].default
        }
        for name, strategy in STRATEGIES.items()
    }
    return _json(
        {
            "settings": {name: _entry(each) for name, each in known.items()},
            "strategy_defaults": {name: each for name, each in strategy_defaults.items() if each},
            "part_settings": {
                "strategies": {name: _declared(each) for name, each in STRATEGIES.items()},
                "codecs": {name: _declared(each) for name, each in CODECS.items()},
            },
            "strategies": {name: each.summary for name, each in STRATEGIES.items()},
            "prunings": {name: order_summary(each) for name, each in ORDERS.items()},
            "codecs": {name: each.summary for name, each in CODECS.items()},
            "models": {name: each.summary for name, each in MODELS.items()},
            "data": {name: each.summary for name, each in DATASETS.items()},
        }
    )


def _declared(part: Any) -> list[str]:
    unused = getattr(part, "unused", ())
    return [each.name for each in declared(part.Settings) if each.name not in unused]


def _entry(setting: Setting) -> dict[str, Any]:
    limits = asdict(setting.allowed).items()
    return {
        "group": setting.group or _group(setting.name),
        "kind": kind_name(setting.kind),
        "default": setting.default,
        "help": setting.help,
        "allowed": {k: v for k, v in limits if v is not None and v is not False},
    }


def _group(name: str) -> str:
    """Choose the heading of a setting by what declares it."""

    def declares(group: type) -> bool:
        return any(each.name == name for each in declared(group))

    if declares(Recipe):
        return "training"
    if declares(EnvironmentSettings):
        return ENVIRONMENT
    strategies = [strategy for strategy, each in STRATEGIES.items() if declares(each.Settings)]
    if len(strategies) == 1:
        return _STRATEGY_GROUPS.get(strategies[0], f"strategy {strategies[0]}")
    if strategies:
        return f"strategies {', '.join(strategies)}"
    codecs = [codec for codec, each in CODECS.items() if declares(each.Settings)]
    return f"codec {', '.join(codecs)}"


def _json(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Write JSON with one entry on each line, so that differences are easy to read."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    sections = []
    for name, entries in content.items():
        lines = ",\n".join(f"  {text(key)}: {text(value)}" for key, value in entries.items())
        sections.append(f" {text(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(catalogue_text(), encoding="utf-8")
    print(f"{FILE} is up to date.")
