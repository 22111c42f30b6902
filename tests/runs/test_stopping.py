"""Runs that end before all their rounds are done, by a setting or by a listener."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adaptcl
from adaptcl.data import as_samples
from adaptcl.errors import RunFolderError, SettingError
from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted, TaskSent
from adaptcl.runs.files.folder import RunFolder
from adaptcl.training.objectives.evaluation import score
from tests.runs.small_runs import CutOffError, assert_same, clouds, cut_off_after, small_run

JOB: dict[str, Any] = {"strategy": "fedavg", "rounds": 5}


def run(out: Path, **settings: Any) -> adaptcl.Result:
    return small_run(out, **{**JOB, **settings})


def end_of_round(folder: Path, number: int) -> float:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    found: float = json.loads(lines[number - 1])["virtual_time_s"]
    return found


def stop_in(number: int, *reason: str) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == number:
            raise adaptcl.StopRun(*reason)

    return stop


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["adaptcl", "fedasync-s"])
def test_a_run_ends_at_a_time_as_any_other_run_ends(tmp_path: Path, strategy: str) -> None:
    whole = run(tmp_path / "whole", strategy=strategy)
    limit = end_of_round(tmp_path / "whole", 3) - 0.001
    found = run(tmp_path / "until", strategy=strategy, max_virtual_time=limit)
    assert whole.summary.stopped_by is None
    assert found.summary.stopped_by == "max_virtual_time"
    assert found.rounds == whole.rounds[:3]
    assert found.summary.rounds == 3
    assert found.summary.accuracy == whole.rounds[2].accuracy
    names = {path.name for path in (tmp_path / "until").iterdir()}
    assert {"summary.json", "model.safetensors", "sub-models.safetensors"} <= names
    assert not names & {"checkpoint.safetensors", "status.json"}
    assert json.loads((tmp_path / "until/summary.json").read_text())["stopped_by"] is not None


@pytest.mark.filterwarnings("ignore:max_virtual_time")  # of 1 ms is meant here
def test_the_round_in_which_the_time_is_up_is_tested(tmp_path: Path) -> None:
    found = run(tmp_path / "run", max_virtual_time=0.001, evaluate_every=4)
    (last,) = found.rounds
    assert last.accuracy == found.summary.accuracy


@pytest.mark.slow
def test_a_run_ends_with_the_accuracy_or_without_progress(tmp_path: Path) -> None:
    reached = run(tmp_path / "a", rounds=8, learning_rate=1e-6, target_accuracy=2)
    assert reached.summary.stopped_by == "target_accuracy"
    assert reached.summary.rounds == 5, "fewer tests are no mean"
    # With so low a rate nothing is learned.
    stuck = run(tmp_path / "b", learning_rate=1e-6, early_stopping=2)
    assert stuck.summary.stopped_by == "early_stopping"
    assert stuck.summary.rounds == stuck.summary.best_round + 2


def test_a_rule_met_in_the_last_round_ends_nothing_early(tmp_path: Path) -> None:
    run(tmp_path / "run")
    end = end_of_round(tmp_path / "run", 5)
    assert run(tmp_path / "until", max_virtual_time=end).summary.stopped_by is None


def test_a_target_accuracy_is_in_per_cent(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"target_accuracy is 0\.8, but it must be in per cent"):
        run(tmp_path / "run", target_accuracy=0.8)


def test_a_target_accuracy_needs_accuracy_as_the_main_metric(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="but here it is spread; give target instead"):
        run(tmp_path / "run", target_accuracy=80, metrics={"spread": lambda y, _: y.std()})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_was_cut_off_ends_by_the_same_rule(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    limit = end_of_round(tmp_path / "whole", 3)
    settings = {"max_virtual_time": limit, "early_stopping": 4}
    run(tmp_path / "at-once", **settings)
    with pytest.raises(CutOffError):
        run(tmp_path / "twice", listeners=[cut_off_after(3)], **settings)
    run(tmp_path / "twice", resume=True, **settings)
    assert_same(tmp_path / "twice", tmp_path / "at-once")


def test_a_run_that_was_stopped_before_its_results_were_written_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CutOffError

    run(tmp_path / "at-once", listeners=[stop_in(2)])
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", fail)
        with pytest.raises(CutOffError):
            run(tmp_path / "twice", listeners=[stop_in(2)])
    with pytest.raises(RunFolderError, match="cannot go on to 9 rounds: a listener ended it"):
        run(tmp_path / "twice", resume=True, rounds=9)
    assert run(tmp_path / "twice", resume=True).summary.stopped_by == "listener"
    assert_same(tmp_path / "twice", tmp_path / "at-once")


@pytest.mark.filterwarnings("ignore:max_virtual_time")  # of 1 ms is meant here
def test_a_stopped_run_counts_as_finished_and_cannot_be_made_longer(tmp_path: Path) -> None:
    settings = {"max_virtual_time": 0.001}
    first = run(tmp_path / "run", **settings)
    again = run(tmp_path / "run", resume=True, **settings)
    assert again.summary == first.summary
    with pytest.raises(RunFolderError, match="cannot go on to 9 rounds: max_virtual_time ended it"):
        run(tmp_path / "run", resume=True, rounds=9, **settings)


@pytest.mark.slow
def test_a_run_made_longer_still_ends_by_its_rule(tmp_path: Path) -> None:
    run(tmp_path / "whole", rounds=7)
    settings = {"max_virtual_time": end_of_round(tmp_path / "whole", 5)}
    run(tmp_path / "at-once", rounds=7, **settings)
    run(tmp_path / "longer", rounds=3, **settings)
    assert run(tmp_path / "longer", rounds=7, resume=True, **settings).summary.rounds == 5
    assert_same(tmp_path / "longer", tmp_path / "at-once")


# Listeners ---------------------------------------------------------------------------------------


def test_a_listener_ends_a_run_cleanly_after_the_round(tmp_path: Path) -> None:
    heard: list[Event] = []
    whole = run(tmp_path / "whole")
    found = run(tmp_path / "run", listeners=[stop_in(3, "the loss rises"), heard.append])
    assert found.summary.stopped_by == "listener: the loss rises"
    assert found.rounds == whole.rounds[:3]
    assert isinstance(heard[-1], RunFinished)
    assert adaptcl.load(tmp_path / "run", model=found.model)


@pytest.mark.parametrize("kind", [RunStarted, TaskSent])
def test_a_listener_may_ask_at_any_event_and_the_round_is_finished(
    tmp_path: Path, kind: type[Event]
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, kind):
            raise adaptcl.StopRun

    found = run(tmp_path / "run", listeners=[stop], evaluate_every=4)
    assert found.summary.stopped_by == "listener"
    assert [record.round for record in found.rounds] == [1]
    assert found.rounds[0].accuracy is not None


def test_a_listener_gets_the_model_of_the_round_that_is_tested(tmp_path: Path) -> None:
    test, found = clouds(60, 1), list[float]()
    samples = as_samples(test)

    def judge(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.model is not None:
            found.append(score(event.model(), samples).metrics["accuracy"])

    result = run(tmp_path / "run", test=test, listeners=[judge])
    assert found == [record.accuracy for record in result.rounds]
    assert len({*found}) > 1


def test_a_listener_that_fails_is_reported_once_and_dropped(tmp_path: Path) -> None:
    heard: list[Event] = []
    calls: list[Event] = []

    def fragile(event: Event) -> None:
        calls.append(event)
        raise ValueError("too much")

    with pytest.warns(adaptcl.AdaptCLWarning) as warned:
        found = run(tmp_path / "run", listeners=[fragile, heard.append])
    assert len(calls) == 1
    (message,) = [str(each.message) for each in warned]
    assert message.startswith(
        "The listener fragile raised ValueError: too much (test_stopping.py, line "
    )
    assert message.endswith("it gets no more events, and the run goes on.")
    assert found.summary.rounds == 5
    assert sum(isinstance(each, RoundFinished) for each in heard) == 5


def test_a_listener_that_fails_on_the_warning_is_dropped_too(tmp_path: Path) -> None:
    def fragile(event: Event) -> None:
        raise ValueError("too much")

    def touchy(event: Event) -> None:
        raise KeyError("also")

    with pytest.warns(adaptcl.AdaptCLWarning) as warned:
        run(tmp_path / "run", listeners=[fragile, touchy])
    assert sorted(str(each.message).split()[2] for each in warned) == ["fragile", "touchy"]


def test_errors_of_the_run_folder_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk(event: Event) -> None:
        monkeypatch.setattr("os.fsync", full)

    with pytest.raises(RunFolderError, match=r"rounds\.jsonl cannot be written: No space left"):
        run(tmp_path / "run", listeners=[fill_the_disk])


@pytest.mark.filterwarnings("error")
def test_where_warnings_are_errors_they_end_the_run(tmp_path: Path) -> None:
    def fragile(event: Event) -> None:
        raise ValueError("too much")

    with pytest.raises(adaptcl.AdaptCLWarning, match="too much"):
        run(tmp_path / "run", listeners=[fragile])
