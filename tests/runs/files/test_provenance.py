"""Which code made a run, on which machine and when."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from adaptcl.errors import SettingError
from adaptcl.runs.files import provenance as module
from adaptcl.runs.files.provenance import PROVENANCE, commit, device_name, with_provenance


@pytest.mark.parametrize("before", [None, "{damaged"])
def test_each_beginning_adds_an_entry(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / PROVENANCE
    if before is not None:
        path.write_text(before)
    path.write_text(with_provenance(path, 1, "cpu"))
    first, second = json.loads(with_provenance(path, 5, "cpu"))
    assert (first["from_round"], second["from_round"]) == (1, 5)
    assert first["device"].startswith("cpu (")
    assert first["time"].endswith("+00:00")
    assert all(first[name] for name in ("adaptcl", "commit", "python", "torch"))


def test_without_git_the_commit_is_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ADAPTCL_COMMIT", "abc123")
    assert commit() == "abc123"
    monkeypatch.delenv("ADAPTCL_COMMIT")
    assert commit() == "unknown"


def test_a_repository_around_the_package_that_does_not_track_it_has_not_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "adaptcl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(module, "_PACKAGE", package)
    monkeypatch.delenv("ADAPTCL_COMMIT", raising=False)
    assert commit() == "unknown"


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(SettingError, match=f"device is '{device}'"):
        device_name(device)
