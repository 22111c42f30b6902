"""The report as a person meets it: in a real browser, offline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.page.report import MOST_BLOCKS, MOST_WORKERS, json_text, page, page_data, write_report
from adaptcl.records import RoundRecord, WorkerRecord
from adaptcl.report.saved_run import Run, by_strategy, read_run
from tests.report.conftest import Story, write_folder


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(by_strategy([read_run(runs / "adaptcl"), read_run(runs / "fedavg-s")]), path)
    return path


@pytest.fixture
def opened(browser: Any, report: Path) -> Any:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    opened = context.new_page()
    opened.requests = []
    opened.errors = []
    opened.on("request", lambda request: opened.requests.append(request.url))
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.goto(report.as_uri())
    yield opened
    assert opened.errors == []
    context.close()


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three seeds of AdaptCL and of FedAVG, which ended after fewer rounds."""
    folder = tmp_path_factory.mktemp("seeds")
    stories = [
        Story(name, seed, rounds, adapts=name == "adaptcl", settings={"rounds": 20})
        for name, rounds in (("fedavg", 5), ("adaptcl", 10))
        for seed in (1, 2, 3)
    ]
    return [read_run(write_folder(folder / str(n), each)) for n, each in enumerate(stories)]


def test_the_seeds_of_a_method_have_one_name_and_one_colour(seeds: list[Run]) -> None:
    data = page_data(seeds)
    names = [f"{run['method']} {run['colour']}" for run in data["runs"]]
    assert len({run["label"] for run in data["runs"]}) == 6
    assert list(dict.fromkeys(names)) == ["fedavg #7a7a7a", "adaptcl #d55e00"]
    assert "seed=" not in "".join(data["verdict"])


@pytest.mark.slow
def test_workers_that_have_done_all_their_rounds_are_called_done(
    browser: Any, tmp_path: Path
) -> None:
    run = read_run(write_folder(tmp_path / "run", Story("fedasync-s", workers=2, rounds=1)))
    workers = tuple(replace(each, begin_s=0.0) for each in run.rounds[0].workers)
    alone = replace(run, rounds=(replace(run.rounds[0], workers=workers),))
    write_report([alone], tmp_path / "report.html")
    opened = browser.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    assert "waited 0 % of the time and were done for 30 %" in opened.inner_text("#verdict")
    assert "they are done for 30 % of the run" in opened.inner_text("#ends")
    assert "done" in opened.inner_text("#legend")
    opened.close()


@pytest.mark.slow
def test_over_seeds_the_page_shows_methods(browser: Any, seeds: list[Run], tmp_path: Path) -> None:
    write_report(seeds, tmp_path / "report.html")
    opened = browser.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    assert opened.locator("#title").inner_text() == "fedavg · adaptcl"
    assert opened.locator("#job").inner_text().endswith("5 to 10 rounds")
    assert opened.locator("#ends h3").count() == 2
    assert opened.locator("#metric .uplot").get_attribute("data-points") == "15"
    chosen = opened.locator('#retention-tabs button[aria-pressed="true"]')
    assert chosen.inner_text().startswith("adaptcl")
    opened.locator("#methods button", has_text="fedavg").click()
    assert opened.locator("#metric .uplot").get_attribute("data-points") == "10"
    opened.close()


@pytest.mark.slow
def test_the_report_asks_no_other_file_or_host(opened: Any, report: Path) -> None:
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.as_uri()]


@pytest.mark.slow
def test_every_round_is_a_point(opened: Any) -> None:
    assert opened.locator("#metric .uplot").get_attribute("data-points") == "12"


@pytest.mark.slow
def test_the_head_says_who_waited_and_who_was_fastest(opened: Any) -> None:
    *lines, said = opened.locator("#verdict li").all_inner_texts()[:3]
    assert "was fastest to" in said
    # The same number as the verdict's, and the name of what it is.
    final = said.split("final accuracy of ")[1].split(" %")[0]
    assert f"accuracy {final} % (mean of the last 5 tests), after " in lines[0]
    waited = [int(line.rsplit("waited ", 1)[1].split()[0]) for line in lines]
    assert [line.split(":")[0] for line in lines] == ["fedavg-s", "adaptcl"]
    assert waited[0] > waited[1]


@pytest.mark.slow
def test_without_a_pointer_legends_show_the_latest_values(opened: Any) -> None:
    for place in ("metric", "heterogeneity", "waiting", "bytes", "retention"):
        first, *values = opened.locator(f"#{place} .u-value").all_inner_texts()
        assert first == "latest"
        assert values
        assert not {"–", "--", ""} & {*values}


@pytest.mark.slow
def test_the_title_of_many_runs_names_their_methods(browser: Any, tmp_path: Path) -> None:
    stories = [
        Story(name, rounds=10, settings={"sigma": sigma})
        for name in ("fedavg", "adaptcl")
        for sigma in (2.0, 5.0)
    ]
    runs = [read_run(write_folder(tmp_path / str(n), each)) for n, each in enumerate(stories)]
    write_report(runs, tmp_path / "report.html")
    opened = browser.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    assert opened.locator("#title").inner_text() == "fedavg · adaptcl"
    lines = opened.locator("#verdict li").all_inner_texts()
    assert [line.split(":")[0] for line in lines[:2]] == ["sigma=2", "sigma=5"]
    opened.close()


@pytest.mark.slow
def test_a_run_is_hidden_and_shown_again(opened: Any) -> None:
    button = opened.locator("#methods button", has_text="adaptcl")
    button.click()
    assert opened.locator("#metric .uplot").get_attribute("data-points") == "6"
    assert opened.locator("#ends h3").count() == 1
    button.click()
    assert opened.locator("#metric .uplot").get_attribute("data-points") == "12"


@pytest.mark.slow
def test_a_bar_of_the_timeline_tells_its_numbers_and_zooms(opened: Any) -> None:
    canvas = opened.locator("#timeline")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert canvas.get_attribute("data-bars") == "24"
    opened.mouse.move(box["x"] + 40, box["y"] + 9)
    shown = opened.locator("#tip").inner_text()
    assert shown.startswith("worker 0, round 1\nsend ")
    assert "retention 100.0 %" in shown
    opened.mouse.move(box["x"] + 100, box["y"] + 9)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 300, box["y"] + 9)
    opened.mouse.up()
    assert opened.evaluate("state.zoom") is not None
    canvas.dblclick(position={"x": 200, "y": 9})
    assert opened.evaluate("state.zoom") is None


@pytest.mark.slow
def test_a_worker_is_hidden_and_shown_again(opened: Any) -> None:
    button = opened.locator("#workers button", has_text="2")
    button.click()
    assert opened.locator("#timeline").get_attribute("data-bars") == "18"
    assert "worker 2" not in opened.locator("#retention").inner_text()
    assert "worker 2" not in opened.locator("#widths").inner_text()
    button.click()
    assert opened.locator("#timeline").get_attribute("data-bars") == "24"


@pytest.mark.slow
def test_the_first_screen_shows_the_end_of_a_run_without_waiting(opened: Any) -> None:
    for run in ("fedavg-s", "adaptcl"):
        for part in ("first", "last"):
            strip = opened.locator(f'canvas[data-run="{run}"][data-part="{part}"]')
            box = strip.bounding_box()
            assert box["y"] + box["height"] < 900
    waits = opened.evaluate(
        "state.data.runs.map((run) => run.ends.last.map((bars) => bars.at(-1)[6]))"
    )
    (fedavg, adaptcl) = waits
    assert max(fedavg) > 10 * max(adaptcl)


@pytest.mark.slow
def test_the_report_holds_the_settings_to_run_it_again(
    opened: Any, runs: Path, tmp_path: Path
) -> None:
    with opened.expect_download() as started:
        opened.locator("#again a").first.click()
    saved = tmp_path / started.value.suggested_filename
    started.value.save_as(saved)
    assert saved.name == "fedavg-s.toml"
    assert saved.read_bytes() == (runs / "fedavg-s" / "config.toml").read_bytes()
    assert f"adaptcl run {saved.name}" in opened.locator("#again").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    browser: Any, report: Path, scheme: str
) -> None:
    narrow = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
    narrow.goto(report.as_uri())
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 400
    narrow.close()


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path, report: Path) -> None:
    again = by_strategy([read_run(runs / "fedavg-s"), read_run(runs / "adaptcl")])
    write_report(again, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == report.read_bytes()


def test_no_text_of_a_run_can_become_part_of_the_page(runs: Path) -> None:
    data = page_data([read_run(runs / "adaptcl")])
    data["runs"][0]["label"] = "</script><script>alert(1)</script>"
    assert "<script>alert" not in page(json_text(data))


def test_a_long_run_of_many_workers_stays_small() -> None:
    def worker(number: int) -> WorkerRecord:
        return WorkerRecord(number, 1.0, 2.0, 1.0, 4.0 + number / 1000, 1.0, 0.0)

    rounds = tuple(
        RoundRecord(n, 5.0 * n, 0.5, 0.1, tuple(worker(w) for w in range(1000)))
        for n in range(1, 51)
    ) + tuple(RoundRecord(n, 5.0 * n, 0.5, 0.1, (worker(0),)) for n in range(51, 5001))
    run = Run(Path("runs"), "big", {"strategy": "fedavg", "rounds": 5000}, rounds, None)
    data = page_data([run])["runs"][0]
    assert len(data["timeline"]["workers"]) == MOST_WORKERS
    assert data["workers_seen"] == 1000
    (slowest, *_), workers = data["timeline"]["bars"], data["timeline"]["workers"]
    assert workers[0] == 0
    assert len(slowest) <= MOST_BLOCKS
    # A block adds up its rounds, so nothing of the run is missing: 2 s of training in each.
    assert [bar[0] for bar in slowest][:3] == [1, 18, 35]
    assert sum(bar[4] for bar in slowest) == pytest.approx(5000 * 2.0)
    assert len(json.dumps(data)) < 1_000_000
