"""The command line answers questions about itself at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import adaptcl

COMMANDS = [
    *(["--help"], ["--version"], ["run", "--help"], ["run", "--help-all"], ["server", "--help"]),
    *(["strategies"], ["prunings"], ["codecs"], ["models"], ["presets"], ["data"]),
    *(
        ["rnu"],
        ["run", "--rouns", "3"],
        ["run", "--rounds", "x"],
        ["run", "--preset", "x"],
        ["compare", "--cvs", "x"],
    ),
]
SCRIPT = """
import contextlib, io, json, sys
import adaptcl
from adaptcl.cli.main import main

slow = {"torch", "numpy", "matplotlib", "rich", "PIL"}
found = {"import adaptcl": sorted(slow & set(sys.modules))}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(words)
    found[" ".join(words)] = sorted(slow & set(sys.modules))
print(json.dumps(found))
"""


def test_the_public_names_are_found_when_they_are_used() -> None:
    assert {"run", "load", "describe", "Progress", "Result", "events"} <= set(dir(adaptcl))
    assert [name for name in adaptcl.__all__ if not hasattr(adaptcl, name)] == []
    assert adaptcl.events.__name__ == "adaptcl.events"
    assert adaptcl.strategies.STRATEGIES
    with pytest.raises(AttributeError, match="module 'adaptcl' has no attribute 'rum'"):
        adaptcl.rum  # type: ignore[attr-defined]  # noqa: B018


def test_help_lists_and_misspellings_import_neither_torch_nor_matplotlib() -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps(COMMANDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert len(found) == len(COMMANDS) + 1
    assert [words for words, slow in found.items() if slow] == []
