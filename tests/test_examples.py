from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "bring_your_own_model.py"


def test_bring_your_own_model_runs_and_adaptcl_is_faster(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
    # The threads of several tests side by side would only be in each other's way.
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    told = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, cwd=tmp_path, env=quiet, timeout=120
    )
    assert told.returncode == 0, told.stderr.decode()
    rows = re.findall(r"^(\S+) +accuracy ([\d.]+)% +([\d.]+)×", told.stdout.decode(), re.MULTILINE)
    assert [name for name, _, _ in rows] == ["fedavg-s", "adaptcl"]
    accuracies = [float(accuracy) for _, accuracy, _ in rows]
    assert min(accuracies) > 90
    assert accuracies[1] > accuracies[0] - 1.5
    assert float(rows[1][2]) > 1.5
    assert list(tmp_path.iterdir()) == []
