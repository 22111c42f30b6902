"""Imports point down, and importing the package does nothing but import it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import adaptcl

PACKAGE = Path(adaptcl.__file__).parent

TIERS = (
    "errors interrupts quantities seeds settings storage",
    "units",
    "models data custom",
    "pruning codecs training",
    "records events strategies",
    "engines config",
    "runs report flower trackers page",
    "cli api __main__ __init__",
)
"""From the bottom to the top. Parts of one tier may import each other, but not in a circle."""


def imported(path: Path) -> Iterator[str]:
    """The parts of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "adaptcl":
            names = [f"adaptcl.{each.name}" for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("adaptcl."))


@pytest.mark.slow
def test_imports_point_down_and_never_in_a_circle() -> None:
    height = {part: number for number, tier in enumerate(TIERS) for part in tier.split()}
    imports: dict[str, set[str]] = {}
    upwards = []
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        # What `adaptcl` itself exports is not a part of it, such as `adaptcl.run`.
        below = {each for each in imported(path) if each != part and each in height}
        imports.setdefault(part, set()).update(below)
        upwards += [
            f"{path.relative_to(PACKAGE)} imports {each}"
            for each in below
            if height[each] > height[part]
        ]
    assert imports.keys() == height.keys()
    assert upwards == []
    assert len(TIERS) <= 8
    TopologicalSorter(imports).prepare()  # raises CycleError


def test_importing_the_package_leaves_the_environment_of_the_process_alone() -> None:
    ask = "import os; before = dict(os.environ); import adaptcl; print(dict(os.environ) == before)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
