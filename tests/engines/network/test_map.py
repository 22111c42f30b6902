"""The map of the network's modules, which is where a reader begins."""

from __future__ import annotations

import ast
from pathlib import Path

import adaptcl

NETWORK = Path(adaptcl.__file__).parent / "engines" / "network"


def test_the_map_names_every_module_and_no_other() -> None:
    words = ast.get_docstring(ast.parse((NETWORK / "__init__.py").read_text("utf-8"))) or ""
    rows = [line.split()[0] for line in words.splitlines() if line.startswith("    ")]
    modules = {path.stem for path in NETWORK.rglob("*.py") if path.name != "__init__.py"}
    folders = {f"{path.parent.name}/" for path in NETWORK.glob("*/__init__.py")}
    assert set(rows) == modules | folders
