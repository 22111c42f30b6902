"""Imports point down, and importing the package does nothing but import it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adaptcl

PACKAGE = Path(adaptcl.__file__).parent

LAYERS = (
    "errors lazy seeds settings",
    "units",
    "models data custom storage",
    "pruning codecs training",
    "records events strategies",
    "engines config",
    "runs report flower",
    "cli __main__ __init__",
)
"""From the bottom to the top; what stands in one line may import each other."""

_HEIGHT = {name: height for height, line in enumerate(LAYERS) for name in line.split()}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0]
        yield part.removesuffix(".py"), path


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


def test_every_part_of_the_package_has_a_layer() -> None:
    assert {part for part, _ in modules()} == set(_HEIGHT)


@pytest.mark.parametrize(
    ("part", "path"), list(modules()), ids=lambda each: getattr(each, "name", "")
)
def test_imports_point_down(part: str, path: Path) -> None:
    up = {each for each in imported(path) if _HEIGHT.get(each, 0) > _HEIGHT[part]}
    assert up == set()


def test_importing_the_package_leaves_the_environment_of_the_process_alone() -> None:
    ask = "import os; before = dict(os.environ); import adaptcl; print(dict(os.environ) == before)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
