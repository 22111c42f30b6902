"""docs/own-task.md: its programs run one after the other, as a reader would try them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCUMENT = Path(__file__).parents[1] / "docs" / "own-task.md"


@pytest.mark.filterwarnings("ignore:.*pruned units that matter")
def test_the_programs_of_the_page_work() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(programs) == 5
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    mains = []
    for program in programs:
        exec(compile(program, "own-task.md", "exec"), names)
        mains.append(names["result"].summary.metric)
    assert mains == ["rmse", "covered", "covered", "covered", "rmse"]
