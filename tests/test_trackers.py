"""Trackers, each against the real library, offline: what was reported is read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptcl.cli import main
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.records import RoundRecord, WorkerRecord, summarise
from adaptcl.trackers import TrackedRun, round_metrics, tracker_class, tracking
from tests.runs.small_runs import small_run


def record(round_: int) -> RoundRecord:
    workers = tuple(
        WorkerRecord(number, 1.0, 2.0, 1.0, 4.0 + number, 1 - number / 4, 0.0) for number in (0, 1)
    )
    return RoundRecord(round_, 5.0 * round_, round_ / 10, 0.2, workers)


def happenings(first: int, last: int, *, ends: bool) -> Iterator[Event]:
    yield RunStarted("adaptcl", "small", "digits", 2, last, first - 1)
    for number in range(first, last + 1):
        yield RoundFinished(record(number))
    if ends:
        rounds = [record(number) for number in range(1, last + 1)]
        yield RunFinished(
            summarise(
                rounds,
                strategy="adaptcl",
                wall_time_s=1.0,
                retention=(1.0, 0.75),
                params_saved=0.1,
                flops_saved=0.1,
                accuracy_by_class=(),
                accuracy_by_worker=(),
                seed=1,
                workers=2,
                model="small",
                data="digits",
            )
        )


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    folder = tmp_path / "runs" / "adaptcl"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("seed = 1\n")
    return TrackedRun(folder, "adaptcl", {"strategy": "adaptcl", "seed": 1})


def report(name: str, run: TrackedRun, first: int, last: int, *, ends: bool) -> None:
    tracker = tracker_class(name)(run)
    try:
        for event in happenings(first, last, ends=ends):
            tracker(event)
    finally:
        tracker.close()


def report_with_a_break(name: str, run: TrackedRun) -> None:
    report(name, run, 1, 3, ends=False)
    report(name, run, 3, 4, ends=True)


def test_tensorboard_has_every_round_once(run: TrackedRun) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report_with_a_break("tensorboard", run)
    read = EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()
    curve = read.Scalars("accuracy")
    assert [event.step for event in curve] == [1, 2, 3, 4]
    assert [event.value for event in curve] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [event.value for event in read.Scalars("update_time_s/worker_1")] == [5.0] * 4


@pytest.mark.slow
def test_mlflow_goes_on_in_the_same_run(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    report_with_a_break("mlflow", run)
    client = MlflowClient((run.folder.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("adaptcl")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params == {"strategy": "adaptcl", "seed": "1"}
    assert {metric.step for metric in client.get_metric_history(found.info.run_id, "accuracy")} == {
        1,
        2,
        3,
        4,
    }
    assert found.data.metrics["retention/worker_1"] == 0.75
    assert [each.path for each in client.list_artifacts(found.info.run_id)] == ["config.toml"]


@pytest.mark.slow
def test_wandb_works_offline_and_keeps_its_identifier(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    report_with_a_break("wandb", run)
    files = sorted((run.folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.stem.rsplit("-", 1)[1] for path in files}) == 1
    steps = [
        int(record.history.step.num)
        for path in files
        for record in wandb_records(path)
        if record.HasField("history")
        and any(
            item.nested_key == ["update_time_s/worker_1"] or item.key == "update_time_s/worker_1"
            for item in record.history.item
        )
    ]
    assert steps[:3] == [1, 2, 3]


def wandb_records(path: Path) -> Iterator[Any]:
    """The messages in a file of Weights & Biases: LevelDB's log format, after a short header."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    content, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block is padding
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a message in one piece, or its last piece
            record = messages.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(SettingError, match="There is no tracker 'tensorbord'; there are"):
        tracking(["tensorbord"])


def test_a_run_of_very_many_workers_has_no_curve_for_each(run: TrackedRun) -> None:
    crowd = tuple(replace(record(1).workers[0], worker=number) for number in range(101))
    assert not any("worker_" in name for name in round_metrics(replace(record(1), workers=crowd)))


def two_rounds_and_one_more_in_the_shell(out: Path) -> None:
    track = ("--track", "tensorboard,mlflow,wandb")
    job = ("--data", "digits", "--samples", "100", "--workers", "2", "--figures", "none")
    assert main(["run", *job, "--rounds", "2", "--out", str(out), *track]) == 0
    assert main(["resume", str(out), "--rounds", "3", *track]) == 0


def two_rounds_and_one_more_from_python(out: Path) -> None:
    for rounds in (2, 3):
        settings = {"rounds": rounds, "resume": True, "strategy": "adaptcl"}
        small_run(out, track=["tensorboard", "mlflow", "wandb"], **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run_and_resume", [two_rounds_and_one_more_in_the_shell, two_rounds_and_one_more_from_python]
)
def test_a_resumed_run_goes_on_in_the_same_tracked_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_and_resume: Callable[[Path], None]
) -> None:
    for package in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(package)
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    run_and_resume(out)

    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("accuracy")] == [1, 2, 3]
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("adaptcl")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert {metric.step for metric in history} == {1, 2, 3}  # the last round is told again
    assert found.info.status == "FINISHED"
    files = list((out / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.stem.rsplit("-", 1)[1] for path in files}) == 1
