"""Each benchmark for real, on the small model and once."""

from __future__ import annotations

import pytest

from benchmarks import importance, lasso, machine, step, transformers, watching
from benchmarks import round as a_round
from benchmarks.benchmark import BenchmarkReport, Request
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


def test_a_round_is_measured_with_and_without_the_lasso(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a_round, "_STEPS", {"cpu": {"small": 1}})
    monkeypatch.setattr(a_round, "WORKERS", 2)
    report = a_round.measure(ONCE)
    assert [label for label in labels(report) if "processor" not in label] == [
        "small, sparse training",
        "small, no lasso",
    ]


@pytest.mark.slow
def test_status_file_page_and_report_are_measured_in_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, few in (("_ROUNDS", 3), ("_WORKERS", 2), ("_IMAGES", 64)):
        monkeypatch.setattr(watching, name, few)
    report = watching.measure(ONCE)
    assert labels(report)[4:] == ["together, no page open", "together"]
    status, submodels, page, file, without_page, together = (row.value for row in report.rows)
    assert without_page == pytest.approx(status + submodels + file)
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
