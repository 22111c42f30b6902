"""The documentation site: `make docs` builds it. It loads nothing from any other host.

Sphinx reads our Markdown pages through MyST and the docstrings of the public names; the theme is
Furo. The page of settings is written from the catalogue before each build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptcl import __version__
from adaptcl.cli.parser import command_line
from adaptcl.cli.setting_flags import default_of
from adaptcl.config.catalogue import read_catalogue
from adaptcl.config.files import DEFAULT_PRESET, preset

project = "AdaptCL"
author = "The AdaptCL developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "AdaptCL"
html_show_copyright = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
nitpicky = False


def setup(app: Any) -> None:
    page = Path(__file__).parent / "settings.md"
    page.write_text(_settings_page(), encoding="utf-8")


def _settings_page() -> str:
    catalogue = read_catalogue()
    lines = [
        "# Command line and settings",
        "",
        "Every setting is a flag of `adaptcl run` (`--batch-size 64`), a key of a TOML file "
        "(`batch_size = 64`) and an argument of `adaptcl.run` (`batch_size=64`). The defaults are "
        "those of a run without a preset. For another model or other data than the default job's, "
        "`train_time` is measured and `bandwidth_max` is 5.",
        "",
        "```",
        command_line().format_help().strip(),
        "```",
    ]
    groups: dict[str, list[str]] = {}
    for each in catalogue.settings.values():
        default = default_of(each, catalogue, preset(DEFAULT_PRESET))
        default = "" if default == "none" else f"`{default}`"
        text = each.help.replace("|", "\\|")
        groups.setdefault(each.group, []).append(f"| `{each.name}` | {default} | {text} |")
    for name, rows in groups.items():
        lines += [
            "",
            f"## {name.capitalize()}",
            "",
            "| setting | default | |",
            "|---|---|---|",
            *rows,
        ]
    for title, summaries in (
        ("Strategies", catalogue.strategies),
        ("Pruning orders", catalogue.prunings),
        ("Codecs", catalogue.codecs),
        ("Models", catalogue.models),
        ("Data sets", catalogue.data),
    ):
        lines += ["", f"## {title} by name", "", "| name | |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in summaries.items()]
    return "\n".join(lines) + "\n"
