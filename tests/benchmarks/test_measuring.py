"""Each benchmark for real, on the small model and once."""

from __future__ import annotations

import pytest
import torch

from adaptcl import models
from adaptcl.errors import SettingError
from benchmarks import importance, lasso, layout, machine, step, threads, transformers, watching
from benchmarks import round as a_round
from benchmarks.benchmark import BenchmarkReport, Request
from benchmarks.layout import refuse_unsafe
from benchmarks.subjects import SHAPES
from benchmarks.transformer_jobs import TransformerSize

ONCE = Request(repeats=1)


def labels(report: BenchmarkReport) -> list[str]:
    assert all(row.value > 0 for row in report.rows)
    return [row.label for row in report.rows]


def test_a_step_is_measured_at_every_retention_with_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "_MODEL", "small")
    monkeypatch.setattr(step, "RETENTIONS", (1.0, 0.25))
    monkeypatch.setattr(machine, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(machine, "_BATCH", {"cpu": 1})
    report = step.measure(ONCE)
    whole = report.rows[0]
    assert (whole.label, whole.value) == ("γ = 1", 1.0)
    assert all(row.limit is not None for row in report.rows)
    barred = [label for label, row in zip(labels(report), report.rows, strict=True) if row.bar]
    assert len(barred) == 2
    assert all(label.startswith("γ = 0.25") for label in barred)


def test_the_lasso_is_measured_against_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasso, "_MODELS", ("small",))
    report = lasso.measure(ONCE)
    assert labels(report) == ["small, in place", "small, a plain term of the loss"]
    assert all(row.value < 1 for row in report.rows)


def test_layouts_are_measured_against_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MODELS", ("small",))
    report = layout.measure(ONCE)
    first = [row.value for row in report.rows if row.label.endswith("channels first")]
    assert first == [1.0, 1.0]
    assert len(labels(report)) == 4


def test_a_round_is_measured_with_and_without_the_lasso(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a_round, "_STEPS", {"cpu": {"small": 1}})
    monkeypatch.setattr(a_round, "WORKERS", 2)
    report = a_round.measure(ONCE)
    assert [label for label in labels(report) if "processor" not in label] == [
        "small, sparse training",
        "small, no lasso",
    ]


def test_workers_side_by_side_are_measured_in_threads_and_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_STEPS", {"small": 1})
    in_a_process = threads._processes("small", workers=1, side=1)()
    assert in_a_process > 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(threads, "_processes", lambda *_: lambda: in_a_process)
    assert labels(threads.measure(ONCE)) == [
        "small, 1 side by side on 2 cores each, threads",
        "small, 2 side by side on 1 core each, threads",
        "small, 2 side by side on 1 core each, processes",
    ]


@pytest.mark.slow
def test_status_file_page_and_report_are_measured_in_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, few in (("_ROUNDS", 3), ("_WORKERS", 2), ("_IMAGES", 64)):
        monkeypatch.setattr(watching, name, few)
    report = watching.measure(ONCE)
    assert labels(report)[3:] == ["together, no page open", "together"]
    status, page, file, without_page, together = (row.value for row in report.rows)
    assert without_page == pytest.approx(status + file)
    assert together == pytest.approx(without_page + page)


@pytest.mark.slow
def test_importances_are_measured_by_the_harm_of_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "_SIZE", TransformerSize(32, 2, 4))
    monkeypatch.setattr(importance, "_STEPS", {"before": 40, "after": 10})
    found = importance.harms("ViT", seed=1)
    assert list(found) == list(importance.IMPORTANCES)
    assert max(each.at_once for each in found.values()) > 0
    assert all(0 < each.heads <= 1 for each in found.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pruned units that matter")
def test_a_transformer_is_cut_until_all_workers_are_equally_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(transformers._SIZES, "GPT-2", TransformerSize(64, 2, 8))
    found = transformers.compare("GPT-2", seed=1, rounds=9, samples=100, evaluate_every=3)
    assert found.faster > 1.8
    assert found.heterogeneity < 0.1
    assert min(found.retention) < 0.4


def test_channels_last_is_never_tried_where_it_corrupts_memory() -> None:
    with pytest.raises(SettingError, match="not known to be safe"):
        refuse_unsafe(models.build("resnet50", (3, 32, 32), 10, seed=1), torch.zeros(2, 3, 32, 32))


def test_a_model_of_the_benchmark_is_safe_with_channels_last() -> None:
    shape = SHAPES["small"]
    refuse_unsafe(models.build("small", shape, 10, seed=1), torch.zeros(2, *shape))
