"""Workers side by side, each on its share of the cores, against one worker on all of them.

Two ways are measured: threads of one process, as a simulation does it, and separate processes,
which share neither the interpreter nor the allocator.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from adaptcl.training import Recipe, Task
from adaptcl.training.worker import Worker, WorkerMemory
from benchmarks.benchmark import BenchmarkReport, Measurement, Request
from benchmarks.subjects import Subject, subject
from benchmarks.timing import Times, child_environment, details

_BATCH = 64
_STEPS = {"vgg16": 2, "small": 40}
"""Steps of each worker."""


def measure(request: Request) -> BenchmarkReport:
    """Time as many workers as there are cores, arranged in several ways."""
    cores = torch.get_num_threads()
    repeats = request.repeats or 3
    rows: list[Measurement] = []
    found = {}
    for name in _STEPS:
        sides = [n for n in range(1, cores + 1) if cores % n == 0]
        ways: dict[str, Callable[[], float]] = {}
        for side in sides:
            label = f"{side} side by side on {cores // side} core{'s' * (cores > side)} each"
            ways[f"{label}, threads"] = _threads(name, cores, side)
            if side > 1:
                ways[f"{label}, processes"] = _processes(name, cores, side)
        times = {label: Times() for label in ways}
        for _ in range(repeats):
            for label, run in ways.items():
                times[label].wall.append(run())
        alone = next(iter(times.values())).best
        rows += [
            Measurement(f"{name}, {label}", alone / t.best, t.best) for label, t in times.items()
        ]
        found[name] = details(times)
    return BenchmarkReport(
        f"{cores} workers on {cores} cores",
        "times as fast as one after the other",
        tuple(rows),
        f"shortest of {repeats} repeats in turn",
        ("A simulation trains one worker a core, in threads.",),
        found,
    )


def _threads(name: str, workers: int, side: int) -> Callable[[], float]:
    one = subject(name, _BATCH * _STEPS[name])

    def run() -> float:
        cores = torch.get_num_threads()
        with ThreadPoolExecutor(
            side, initializer=torch.set_num_threads, initargs=(max(1, cores // side),)
        ) as pool:
            began = time.perf_counter()
            list(pool.map(lambda number: _train(one, number), range(workers)))
            seconds = time.perf_counter() - began
        torch.set_num_threads(cores)
        return seconds

    return run


def _processes(name: str, workers: int, side: int) -> Callable[[], float]:
    def run() -> float:
        cores = max(1, torch.get_num_threads() // side)
        command = [sys.executable, "-m", "benchmarks.threads"]
        command += [name, str(cores), str(workers // side), str(_STEPS[name])]
        others = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(),
            )
            for _ in range(side)
        ]
        for each in others:  # all of them have imported and warmed up
            assert each.stdout is not None
            each.stdout.readline()
        began = time.perf_counter()
        for each in others:
            assert each.stdin is not None
            each.stdin.write(b"\n")
            each.stdin.flush()
        for each in others:
            each.wait()
        seconds = time.perf_counter() - began
        for each in others:
            each.communicate()  # closes the pipes
        return seconds

    return run


def _train(one: Subject, number: int) -> None:
    worker = Worker(number, one.samples, one.model, one.units, seed=1)
    recipe = Recipe(epochs=1.0, batch_size=_BATCH)
    state = dict(one.model.state_dict())
    task = Task(number, 1, state, one.units.everything(), recipe)
    worker.carry_out(task, WorkerMemory(lasso=1e-5))


def _be_a_process(name: str, cores: int, workers: int, steps: int) -> None:
    """The code of a separate process: get ready, then train when a line comes in."""
    torch.set_num_threads(cores)
    one = subject(name, _BATCH * steps)
    _train(one, workers)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(workers):
        _train(one, number)
    sys.stdout.flush()
    os._exit(0)  # nothing to clean up, and the clock is running


if __name__ == "__main__":
    _be_a_process(sys.argv[1], *map(int, sys.argv[2:]))
