"""Run folders with made-up but lifelike records, written as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted, UpdateArrived
from adaptcl.records import RoundRecord, Summary, WorkerRecord
from adaptcl.report.saved_run import Run, read_run

MIB = 2**20


@dataclass(frozen=True)
class Story:
    """What a made-up run does; every number of its folder follows from this."""

    strategy: str = "fedavg-s"
    seed: int = 1
    rounds: int = 4
    workers: int = 4
    final_accuracy: float = 0.8
    round_s: float = 100.0
    adapts: bool = False
    finished: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def retention_of(story: Story, worker: int, round_number: int) -> float:
    """Worker 0 is the slowest and, adapting, ends at 0.4; the last one keeps everything."""
    if not story.adapts or story.workers == 1:
        return 1.0
    share = min(1.0, 2 * round_number / story.rounds)
    return 1.0 - 0.6 * share * (1 - worker / (story.workers - 1))


def worker_record(story: Story, worker: int, round_number: int) -> WorkerRecord:
    """Update time falls with retention, from a full model's time that falls with the number."""
    kept = retention_of(story, worker, round_number)
    before = retention_of(story, worker, round_number - 1)
    full_s = story.round_s * (1 - 0.6 * worker / max(1, story.workers - 1))
    update_s = full_s * kept
    return WorkerRecord(
        worker=worker,
        send_s=update_s / 4,
        train_s=update_s / 2,
        receive_s=update_s / 4,
        update_time_s=update_s,
        retention=kept,
        pruned_rate=1 - kept / before,
        bytes_sent=MIB,
        bytes_received=MIB,
    )


def round_records(story: Story) -> tuple[RoundRecord, ...]:
    """All rounds; the accuracy rises evenly to the final one, round by round."""
    records, now = [], 0.0
    for number in range(1, story.rounds + 1):
        workers = tuple(worker_record(story, w, number) for w in range(story.workers))
        times = [w.update_time_s for w in workers]
        now += max(times)
        records.append(
            RoundRecord(
                round=number,
                virtual_time_s=now,
                accuracy=story.final_accuracy * (0.5 + 0.5 * number / story.rounds),
                heterogeneity=1 - min(times) / max(times),
                workers=workers,
                bytes_sent=sum(w.bytes_sent for w in workers),
                bytes_received=sum(w.bytes_received for w in workers),
            )
        )
    return tuple(records)


def summary_of(story: Story, records: Sequence[RoundRecord]) -> Summary:
    """The summary those rounds come to."""
    kept = tuple(w.retention for w in records[-1].workers)
    moved = sum(w.bytes_sent for r in records for w in r.workers)
    return Summary(
        strategy=story.strategy,
        accuracy=story.final_accuracy,
        best_accuracy=story.final_accuracy,
        best_round=story.rounds,
        best_virtual_time_s=records[-1].virtual_time_s,
        rounds=story.rounds,
        virtual_time_s=records[-1].virtual_time_s,
        wall_time_s=1.5,
        heterogeneity_first=records[0].heterogeneity or 0.0,
        heterogeneity_last=records[-1].heterogeneity or 0.0,
        retention=kept,
        params_saved=1 - sum(kept) / len(kept),
        flops_saved=(1 - sum(kept) / len(kept)) / 2,
        seed=story.seed,
        workers=story.workers,
        model="vgg-tiny",
        data="digits",
        bytes_sent=moved,
        bytes_received=moved,
    )


def write_folder(folder: Path, story: Story) -> Path:
    """Write a run folder with the numbers of the story."""
    folder.mkdir(parents=True)
    config = {
        "strategy": story.strategy,
        "rounds": story.rounds,
        "workers": story.workers,
        "model": "vgg-tiny",
        "data": "digits",
        "seed": story.seed,
        **story.settings,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in config.items()]
    (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    records = round_records(story)
    text = "".join(json.dumps(record.to_json()) + "\n" for record in records)
    (folder / "rounds.jsonl").write_text(text, encoding="utf-8")
    if story.finished:
        summary = json.dumps(summary_of(story, records).to_json())
        (folder / "summary.json").write_text(summary, encoding="utf-8")
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder of this name; the keywords are those of `Story`."""
    return lambda name, **story: write_folder(tmp_path / name, Story(**story))


@pytest.fixture(scope="session")
def make_shared_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A run for several tests, in a new folder of this name."""
    folder = tmp_path_factory.mktemp("shared")
    return lambda name, **story: read_run(write_folder(folder / name, Story(**story)))


@pytest.fixture
def make_run(write_run: Callable[..., Path]) -> Callable[..., Run]:
    """The same, read back."""
    return lambda name, **story: read_run(write_run(name, **story))


@pytest.fixture
def events_of() -> Callable[..., list[Event]]:
    """All events of a run, from its start to its end; the keywords are those of `Story`."""

    def listed(**keywords: Any) -> list[Event]:
        story = Story(**keywords)
        records = round_records(story)
        events: list[Event] = [
            RunStarted(story.strategy, "vgg-tiny", "digits", story.workers, story.rounds)
        ]
        for record in records:
            for worker in record.workers:
                events.append(UpdateArrived(worker.worker, record.round, record.virtual_time_s))
            events.append(RoundFinished(record))
        if story.finished:
            events.append(RunFinished(summary_of(story, records)))
        return events

    return listed
