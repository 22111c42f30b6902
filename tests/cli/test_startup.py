"""The command line answers questions about itself at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
from adaptcl.cli import main

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


@pytest.mark.slow
def test_a_run_imports_no_compiler_of_pytorch(tmp_path: Path) -> None:
    # Importing it and SymPy took four seconds before the first task.
    script = (
        "import sys, adaptcl.cli as cli\n"
        "words = '--data digits --samples 100 --workers 2 --rounds 3 --figures none'\n"
        "assert cli.main(['run', *words.split(), '--out', sys.argv[1]]) == 0\n"
        "print(sorted({'sympy', 'torch._dynamo'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == "[]"
