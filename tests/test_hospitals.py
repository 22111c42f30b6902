"""docs/tutorial/hospitals.md: its files and commands, with a process for each terminal."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.cli import main
from tests import blank_pictures, processes

DOCUMENT = Path(__file__).parents[1] / "docs" / "tutorial" / "hospitals.md"


def in_a_terminal(words: list[str], output: Path) -> None:
    """Run a command in the folder of its output."""
    torch.set_num_threads(1)
    Figure.savefig = blank_pictures.savefig  # type: ignore[method-assign]
    os.chdir(output.parent)
    os.environ["XDG_STATE_HOME"] = str(output.parent / "state")
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(main(words))


@pytest.mark.slow
def test_the_files_and_commands_of_the_page_work(
    command: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    text = DOCUMENT.read_text(encoding="utf-8").replace(":9092", f":{port}")
    monkeypatch.syspath_prepend(tmp_path)  # as `python FILE` does
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    outputs: list[Path] = []
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S):
        if named := re.match(r"# (\S+)\n", block):
            Path(named[1]).write_text(block, encoding="utf-8")
        with ExitStack() as terminals:
            started = []
            for line in re.findall(r"^\$ (.*)$", block, re.M):
                program, *words = shlex.split(line)
                if program == "python":
                    runpy.run_path(words[0], run_name="__main__")
                elif words[0] == "keys":
                    assert command(*words)[0] == 0
                else:
                    outputs.append(tmp_path / f"terminal-{len(outputs)}")
                    process = processes.started(in_a_terminal, words, outputs[-1])
                    started.append(terminals.enter_context(process))
            for each in started:
                each.join(processes.PATIENCE_S)
            assert [each.exitcode for each in started] == [0] * len(started), [
                each.read_text() for each in outputs
            ]

    server, *workers = (each.read_text() for each in outputs)
    assert re.search(rf"listening at \S+:{port} for 3 workers\n", server)
    assert "the workers' inputs are float32 [4]; 2 classes: diabetes, healthy\n" in server
    assert [re.search(r"round 1: (\d+) samples", each)[1] for each in workers] == [  # type: ignore[index]
        *("320", "192", "96")
    ]
    predicted = re.findall(r"(diabetes|healthy)$", capsys.readouterr().out, re.M)
    assert predicted == ["healthy", "diabetes", "healthy", "diabetes", "diabetes"]
