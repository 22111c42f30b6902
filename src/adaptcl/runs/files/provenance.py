"""`provenance.json`: which code made a run, on which machine and when.

It has an entry for each time that the run was begun or continued, because that may have been with
other code or elsewhere.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

import adaptcl
from adaptcl.errors import SettingError

PROVENANCE = "provenance.json"

_PACKAGE = Path(adaptcl.__file__).parent


def with_provenance(path: Path, first_round: int, device: str) -> str:
    """The content of the file at `path` with an entry for now added."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none yet; a damaged one must not end a run
        entries = []
    entry = {
        "from_round": first_round,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "adaptcl": adaptcl.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
    }
    return json.dumps([*entries, entry], indent=2) + "\n"


def device_name(device: str) -> str:
    """The processor or GPU in words."""
    try:
        found = torch.device(device)
        if found.type == "cuda":
            return torch.cuda.get_device_name(found)
    except (RuntimeError, AssertionError):
        raise SettingError(
            f"device is {device!r}, but PyTorch has no such device on this machine."
        ) from None
    return f"{found.type} ({_processor()}, {os.cpu_count()} cores)"


def commit() -> str:
    """The commit of the package's code: from git, else from ADAPTCL_COMMIT, else 'unknown'.

    Uncommitted changes to the package show as '-dirty'.
    """
    # A package that git does not track may still lie inside somebody's repository.
    if _git(_PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is None:
        return os.environ.get("ADAPTCL_COMMIT", "unknown")
    head = _git(_PACKAGE, "rev-parse", "HEAD") or "unknown"
    return f"{head}-dirty" if _git(_PACKAGE, "status", "--porcelain", ".") else head


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
