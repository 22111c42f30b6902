"""docs/first-hour.md: its files and commands, one after the other, as a reader would try them."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[1] / "docs" / "first-hour.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pruned units that matter")
def test_the_files_and_commands_of_the_page_work(
    command: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    sys.path.insert(0, str(Path.cwd()))  # as `python FILE` does
    done: list[str] = []
    output = ""
    for block in blocks:
        if named := re.match(r"# (\S+)\n", block):
            Path(named[1]).write_text(block, encoding="utf-8")
            continue
        for line in re.findall(r"^\$ (.*)$", block, re.M):
            program, *words = shlex.split(line)
            if program == "adaptcl":
                status, said, errors = command(*words)
                assert status == 0, (line, said, errors)
                output += said
            elif words[0] == "-c":
                exec(words[1], {})
            else:
                runpy.run_path(words[0], run_name="__main__")
            done.append(line)
    for name in ("flowers", "my_net"):
        del sys.modules[name]

    assert len(done) == 10
    assert "verdict  adaptcl was fastest to 90 %: " in output
    assert "worker 0 keeps" in capsys.readouterr().out
    assert len(list(Path("runs/sweep").glob("**/summary.json"))) == 4
    summary = json.loads(Path("runs/early/summary.json").read_text())
    assert summary["stopped_by"].startswith("target_accuracy")
    inputs = json.loads(Path("runs/flowers/inputs.json").read_text())
    assert inputs["classes"] == ["iris", "lily", "rose"]
    assert Path("part.pt2").exists()
