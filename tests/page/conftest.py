"""Runs to look at, and a real browser to look with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptcl import cli

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

SMALL = (
    *("--data", "digits", "--samples", "300", "--workers", "4"),
    *("--sigma", "4", "--pruning-interval", "2"),
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of FedAVG-S and one of AdaptCL."""
    out = tmp_path_factory.mktemp("page") / "runs"
    words = ["run", *SMALL, "--rounds", "6", "--strategy", "fedavg-s,adaptcl", "--out", str(out)]
    assert cli.main(words) == 0
    return out


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()
