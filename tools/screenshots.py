"""Makes the pictures of the page in docs/screens, with a real browser, from runs of its own.

    python tools/screenshots.py [--runs FOLDER]

With --runs it shows the finished runs of a folder and makes none. It needs Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from adaptcl.page.report import write_report
from adaptcl.page.watch import Watch
from adaptcl.report.comparisons.labels import distinct_labels
from adaptcl.report.saved_run import by_strategy, read_run
from adaptcl.runs.files.run_files import run_folders

SCREENS = Path(__file__).resolve().parents[1] / "docs" / "screens"
JOB = (
    *("--data", "digits", "--workers", "10", "--sigma", "4", "--pruning-interval", "2"),
    *("--figures", "none"),
)
WIDE, NARROW = (1100, 800), (400, 800)
SECTIONS = {
    "curves": "#metric",
    "timeline": "#timeline",
    "sub-models": "#retention",
    "widths": "#widths",
}
"""Views below the first screen, by an element that they hold."""
COLOURS = 192
"""Of a picture: few enough for small files, enough for its edges."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="a folder with finished runs")
    given: Path | None = parser.parse_args().runs
    SCREENS.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        runs = given or finished_runs(Path(place) / "runs")
        report = Path(place) / "report.html"
        read = [read_run(folder) for folder in run_folders(runs)]
        write_report(distinct_labels(by_strategy(read)), report)
        for scheme in ("light", "dark"):
            for name, size in (("", WIDE), ("-narrow", NARROW)):
                with opened(browser, report.as_uri(), size, scheme) as page:
                    show_report(page, f"{name}-{scheme}")
        show_watched(browser, Path(place))
        browser.close()


def finished_runs(out: Path) -> Path:
    strategies = ("--strategy", "fedavg-s,ssp-s,adaptcl", "--rounds", "16")
    adaptcl = [sys.executable, "-m", "adaptcl", "run", *JOB, *strategies, "--out", str(out)]
    subprocess.run(adaptcl, check=True)
    return out


@contextmanager
def opened(browser: Browser, address: str, size: tuple[int, int], scheme: str) -> Iterator[Page]:
    width, height = size
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.goto(address)
    page.wait_for_selector("#ends canvas", timeout=60_000)
    yield page
    page.close()


def show_report(page: Page, ending: str) -> None:
    save(page.screenshot(), f"report{ending}")
    for name, holds in SECTIONS.items():
        section = page.locator(f"section:has({holds})")
        save(section.screenshot(), f"{name}{ending}")


def show_watched(browser: Browser, place: Path) -> None:
    """A run that goes on, and the same run killed."""
    out = place / "live" / "adaptcl"
    words = [*JOB, "--rounds", "300", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "adaptcl", "run", *words], stdout=subprocess.DEVNULL
    ) as run:
        rounds = out / "rounds.jsonl"
        while not rounds.exists() or len(rounds.read_bytes().splitlines()) < 12:
            if run.poll() is not None:
                sys.exit("the run to be watched has ended")
            time.sleep(0.2)
        watch = Watch([out])
        watch.start()
        with opened(browser, watch.address, WIDE, "light") as page:
            page.wait_for_selector("[data-state=running] .states span")
            save(page.screenshot(), "watch-light")
            run.kill()
            run.wait()
            page.wait_for_selector("[data-state=stopped]")
            save(page.locator("#live").screenshot(), "killed-light")
        watch.close()


def save(picture: bytes, name: str) -> None:
    path = SCREENS / f"{name}.png"
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.stat().st_size / 1000:6.0f} kB  {path}")


if __name__ == "__main__":
    main()
