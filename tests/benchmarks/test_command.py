from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import BENCHMARKS, Benchmark
from benchmarks.__main__ import main
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that reached benchmarks; none of them runs."""
    found: list[Request] = []

    def measure(self: Benchmark, request: Request) -> BenchmarkReport:
        found.append(request)
        rows = (
            Measurement("ours", 1.31, 0.002, Bar(1.15, at_least=True), 1.5),
            Measurement("theirs", 1.0),
        )
        return BenchmarkReport("A race", "times as fast", rows, "twice", ("The wind was still.",))

    monkeypatch.setattr(Benchmark, "measure", measure)
    return found


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)


def test_the_table_shows_figures_bars_limits_and_the_machine(
    asked: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["step", "--repeats", "4"]) == 0
    shown = capsys.readouterr().out
    for words in ("A race", "1.31", "≥ 1.15", "holds", "1.50", "Machine:", "The wind was still."):
        assert words in shown
    assert "2.00 ms" not in shown  # on a shared CPU only ratios mean something
    assert asked == [Request(repeats=4)]


def test_the_json_is_written_where_it_is_wanted(asked: list[Request], tmp_path: Path) -> None:
    assert main(["round", "--out", str(tmp_path / "round.json")]) == 0
    found = json.loads((tmp_path / "round.json").read_text(encoding="utf-8"))
    assert found["benchmark"] == "round"
    assert found["rows"][0]["holds"] is True


def test_nothing_is_measured_if_the_json_could_not_be_written(
    asked: list[Request], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["round", "--out", str(tmp_path / "no" / "round.json")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert not asked


def test_a_benchmark_takes_only_options_that_mean_something_to_it(
    asked: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "--rounds", "3", "--data-dir", "there"]) == 0
    assert asked[0].rounds == 3
    assert asked[0].data_dir == "there"
    assert main(["step", "--rounds", "3"]) == 2


def test_benchmarks_that_train_on_a_gpu_take_its_precision(
    asked: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("step", "lasso", "round", "job"):
        assert main([name, "--precision", "bf16"]) == 0
        assert asked[-1].precision == "bf16"
    # The peers decide the precision of their benchmark.
    assert main(["peers", "--precision", "bf16"]) == 2


def test_a_mistake_gives_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["step", "--repeats", "0"], ["nothing"]):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith("adaptcl: ")
