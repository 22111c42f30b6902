"""Timing competitors fairly: interleaved, repeated, and on a GPU waited for.

A shared machine is never quiet for long, so each repeat runs every competitor once, and what one
suffers the next suffers too. The shortest time counts: disturbances only ever add. What runs on
one core alone is measured in processor time, which does not count the turns of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Times:
    """The times of one competitor, in seconds."""

    wall: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    """Processor time of the whole process; what others do on the machine is not in it."""

    alone: bool = False
    """Whether it ran on one core alone."""

    @property
    def best(self) -> float:
        """The shortest time: of the processor where one core did it all, else on the clock."""
        return min(self.work if self.alone else self.wall)


@contextmanager
def one_core(device: str) -> Iterator[None]:
    """On a CPU leave one core to what is inside, as a simulation does with each worker."""
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
    """The words for what `interleaved` does."""
    clock = "processor time on one core, " if one_core else ""
    return f"{clock}shortest of {repeats} interleaved repeats, after one to warm up"


def details(times: Mapping[str, Times]) -> dict[str, dict[str, list[float]]]:
    """Every time measured, for the JSON."""
    return {name: {"wall_s": each.wall, "work_s": each.work} for name, each in times.items()}


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
