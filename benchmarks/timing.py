"""Fair timing of competitors: interleaved, repeated, and synchronised on a GPU.

A shared machine is never quiet for long. So each repeat runs every competitor once, and a
disturbance meets all of them alike. The shortest time counts, because disturbances only add time.
On a single core processor time counts, which leaves out other programs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

import adaptcl


@dataclass
class Times:
    """The times of one competitor, in seconds."""

    wall: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    """Processor time of the whole process, without other programs."""

    alone: bool = False
    """Whether it ran on one core alone."""

    @property
    def best(self) -> float:
        """The shortest time: processor time on one core, else wall time."""
        return min(self.work if self.alone else self.wall)


@contextmanager
def one_core(device: str) -> Iterator[None]:
    """Use one core of a CPU inside the block, as a simulation does for each worker."""
    cores = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def interleaved(
    competitors: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu"
) -> dict[str, Times]:
    """Run each competitor once to warm up, then all of them in turn, `repeats` times."""
    alone = device == "cpu" and torch.get_num_threads() == 1
    found = {name: Times(alone=alone) for name in competitors}
    for run in competitors.values():
        run()
    for _ in range(repeats):
        for name, run in competitors.items():
            _wait(device)
            wall, work = time.perf_counter(), time.process_time()
            run()
            _wait(device)
            found[name].wall.append(time.perf_counter() - wall)
            found[name].work.append(time.process_time() - work)
    return found


def how(repeats: int, *, one_core: bool = False) -> str:
    """Describe what `interleaved` does."""
    clock = "processor time on one core, " if one_core else ""
    return f"{clock}shortest of {repeats} interleaved repeats, after one to warm up"


def details(times: Mapping[str, Times]) -> dict[str, dict[str, list[float]]]:
    """Every measured time, for the JSON."""
    return {name: {"wall_s": each.wall, "work_s": each.work} for name, each in times.items()}


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a process that runs a module of this package."""
    folders = [Path(adaptcl.__file__).parents[1], Path(__file__).parents[1]]
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
