"""The missing runs: which they are, what fits into the time, and making them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from adaptcl.config.config import Config, configure
from paper import runner
from paper.experiment import Experiment, load_experiments, parse_experiment
from paper.process import RunDone, RunFailed, RunOrder
from paper.result import RunResult, data_sha256, provenance, write_result
from paper.runner import Estimator, Limits, Runner, RunnerOutcome, RunOptions, fits, missing_runs
from paper.store import Store, result_path, run_key

MakeUp = Callable[..., RunResult]
Changed = Callable[..., Config]
REPOSITORY = Path(__file__).parents[2]

NOTHING = Store(Path("nowhere"))


def planned(
    experiment: Experiment, store: Store = NOTHING, **options: object
) -> list[tuple[str, int]]:
    found = missing_runs([experiment], store, replace(RunOptions(), **options))  # type: ignore[arg-type]
    return [(each.config.job.strategy, each.config.job.seed) for each in found]


def test_a_run_that_two_rows_need_is_made_once(tiny: Experiment) -> None:
    assert sorted(planned(tiny)) == [
        ("adaptcl", 1),
        ("adaptcl", 2),
        ("fedavg-s", 1),
        ("fedavg-s", 2),
    ]
    everything = missing_runs(load_experiments(), NOTHING, RunOptions())
    assert len({run_key(each.config.values()) for each in everything}) == len(everything)


def test_runs_come_by_priority_and_then_by_seed(tiny: Experiment, tiny_text: str) -> None:
    assert [seed for _, seed in planned(tiny)] == [1, 1, 2, 2]
    text = tiny_text.replace("priority = 1", "priority = 9", 1)
    assert planned(parse_experiment("tiny", text))[0] == ("fedavg-s", 1)


def test_what_is_there_is_not_made_again(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    config = changed(tiny.parts[0].row("FedAVG-S"), sigma=7.0)
    store = Store(Path("nowhere"), {run_key(config.values()): make_up(config)})
    assert ("fedavg-s", 1) not in planned(tiny, store)
    # Cut short, it is another run.
    assert ("fedavg-s", 1) in planned(tiny, store, rounds=1)


def test_only_the_seeds_that_were_asked_for(tiny: Experiment) -> None:
    found = missing_runs([tiny], NOTHING, RunOptions(), seeds=[2])
    assert {each.config.job.seed for each in found} == {2}


def test_the_options_are_added_to_the_settings(tiny: Experiment) -> None:
    options = RunOptions(data_dir="images", precision="bf16", rounds=1, checkpoint_every=3)
    job = missing_runs([tiny], NOTHING, options)[0].config.job
    assert (job.data_dir, job.precision, job.rounds, job.checkpoint_every) == (
        "images",
        "bf16",
        1,
        3,
    )


def test_an_estimate_grows_with_rounds_and_prefers_the_same_strategy(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    adaptive = tiny.parts[0].row("AdaptCL").config(1)
    barrier = tiny.parts[0].row("FedAVG-S").config(1)
    made = make_up(adaptive)
    slow = replace(made, summary=replace(made.summary, wall_time_s=300.0))
    device = made.provenance.device
    assert Estimator([made], device).seconds(adaptive) == 100.0
    assert Estimator([made], device).seconds(barrier) == 100.0
    longer = changed(tiny.parts[0].row("AdaptCL"), rounds=8)
    assert Estimator([made], device).seconds(longer) == 200.0
    assert Estimator([slow, make_up(barrier)], device).seconds(barrier) == 100.0
    assert Estimator([made], "another device").seconds(adaptive) is None


def test_a_run_on_fewer_samples_says_nothing_of_one_on_all(
    tiny: Experiment, make_up: MakeUp, changed: Changed
) -> None:
    row = tiny.parts[0].row("AdaptCL")
    short = make_up(changed(row, samples=300))
    estimator = Estimator([short], short.provenance.device)
    assert estimator.seconds(row.config(1)) is None
    assert estimator.seconds(changed(row, seed=2, samples=300)) == 100.0


def test_nothing_begins_that_would_not_be_done_in_time() -> None:
    for estimate, left, limit, begins in (
        (100.0, 101.0, 600.0, True),
        (100.0, 99.0, 600.0, False),
        (None, 10.0, 600.0, True),
        (None, 0.0, 600.0, False),
        (700.0, 300.0, 600.0, True),
        (700.0, 299.0, 600.0, False),
        (100.0, math.inf, math.inf, True),
    ):
        assert fits(estimate, left, limit) is begins


def make(
    experiment: Experiment, folder: Path, limits: Limits, say: Callable[[str], None]
) -> RunnerOutcome:
    store, options = Store.open(folder / "results"), RunOptions()
    sources = {"digits": provenance("cpu", "tf32", data_sha256("digits", None))}
    made = Runner(store, options, limits, folder / "work", sources, say)
    return made.run(missing_runs([experiment], store, options))


def test_missing_runs_are_made_and_a_second_time_none(tiny_text: str, tmp_path: Path) -> None:
    short = tiny_text.replace("workers = 4", "workers = 2\nsamples = 64")
    small = parse_experiment("small", short.replace("rounds = 4", "rounds = 2"))
    said: list[str] = []
    assert make(small, tmp_path, Limits(), said.append) == RunnerOutcome(4, (), 0)
    written = [json.loads(path.read_bytes()) for path in (tmp_path / "results").iterdir()]
    assert sorted((w["settings"]["strategy"], w["settings"]["seed"]) for w in written) == [
        ("adaptcl", 1),
        ("adaptcl", 2),
        ("fedavg-s", 1),
        ("fedavg-s", 2),
    ]
    assert list((tmp_path / "work").iterdir()) == []
    assert sum(line.startswith("begun") for line in said) == 4
    assert multiprocessing.active_children() == []
    assert make(small, tmp_path, Limits(), said.append) == RunnerOutcome(0, (), 0)


class FakeProcess:
    """Answers each order at once, without a process or a training."""

    made: list[FakeProcess]
    answers: list[RunFailed | str]
    """Of the next orders; "dies" ends the connection, "waits" gives no answer."""
    make_up: MakeUp

    def __init__(self) -> None:
        self.connection, self._inside = Pipe()
        self.alive = True
        self.made.append(self)

    def start(self, order: RunOrder) -> None:
        answer = self.answers.pop(0) if self.answers else "done"
        if isinstance(answer, RunFailed):
            self._inside.send(answer)
        elif answer == "done":
            made = type(self).make_up(configure(order.values), provenance=order.provenance)
            path = result_path(order.results, made.settings, order.provenance.data_sha256)
            write_result(path, made.to_json())
            self._inside.send(RunDone(path))
        elif answer == "dies":
            self._inside.close()

    def end(self) -> None:
        self.alive = False


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, make_up: MakeUp) -> type[FakeProcess]:
    class Fake(FakeProcess):
        pass

    Fake.made, Fake.answers, Fake.make_up = [], [], make_up
    monkeypatch.setattr(runner, "RunProcess", Fake)
    return Fake


def test_a_run_whose_process_dies_takes_no_other_with_it(
    tiny: Experiment, processes: type[FakeProcess], tmp_path: Path
) -> None:
    said: list[str] = []
    processes.answers = ["dies"]
    outcome = make(tiny, tmp_path, Limits(), said.append)
    assert (outcome.done, len(outcome.failed)) == (3, 1)
    assert any("its process died" in line for line in said)
    assert len(processes.made) == 2
    assert not any(process.alive for process in processes.made)


def test_a_process_serves_on_after_a_foreseen_error_and_not_after_another(
    tiny: Experiment, processes: type[FakeProcess], tmp_path: Path
) -> None:
    said: list[str] = []
    for unforeseen, count in ((False, 1), (True, 2)):
        processes.answers = [RunFailed("There is no module.", unforeseen)]
        processes.made.clear()
        outcome = make(tiny, tmp_path / str(unforeseen), Limits(), said.append)
        assert (outcome.done, len(outcome.failed)) == (3, 1)
        assert len(processes.made) == count
    assert sum("failed" in line and "There is no module." in line for line in said) == 2


def test_the_time_limit_stops_runs_and_leaves_no_process(
    tiny: Experiment, processes: type[FakeProcess], tmp_path: Path
) -> None:
    said: list[str] = []
    processes.answers = ["waits"]
    outcome = make(tiny, tmp_path, Limits(seconds=0.2), said.append)
    assert outcome == RunnerOutcome(0, (), 4)
    assert any("stopped by the time limit" in line for line in said)
    assert not any(process.alive for process in processes.made)


def test_ctrl_c_leaves_no_process(
    tiny: Experiment, processes: type[FakeProcess], tmp_path: Path
) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tiny, tmp_path, Limits(side_by_side=2), interrupt)
    assert [process.alive for process in processes.made] == [False]


_PARENT = """
import multiprocessing, time
from paper.process import RunProcess
process = RunProcess()
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def test_a_process_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        (child,) = (int(word) for word in parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A dead process that nobody waits for stays in the table.
    return ") Z " not in Path(f"/proc/{process}/stat").read_text()
