"""A CSV file of how each worker's bandwidth, speed and presence change over time.

The header is `time_s,worker,bandwidth,speed,available`. Each line applies to a worker (`*` for all)
from that moment on. Bandwidth and speed are factors of the worker's base values; `available` is 1
or 0. A worker without a line is always there and never changes.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptcl.errors import SettingError

_HEADER = ["time_s", "worker", "bandwidth", "speed", "available"]


@dataclass(frozen=True)
class WorkerCondition:
    """The condition of a worker from `since` on."""

    since: float
    bandwidth: float = 1.0
    speed: float = 1.0
    available: bool = True


@dataclass(frozen=True)
class Conditions:
    """The conditions of all workers, each in order of time, beginning at 0."""

    by_worker: tuple[tuple[WorkerCondition, ...], ...]

    @classmethod
    def steady(cls, workers: int) -> Conditions:
        """Conditions that never change."""
        return cls(((WorkerCondition(0.0),),) * workers)

    def at(self, worker: int, time: float) -> WorkerCondition:
        conditions = self.by_worker[worker]
        return conditions[max(0, bisect_right(conditions, time, key=lambda c: c.since) - 1)]

    def after(self, worker: int, time: float) -> float:
        """When the condition at `time` ends."""
        conditions = self.by_worker[worker]
        index = bisect_right(conditions, time, key=lambda c: c.since)
        return conditions[index].since if index < len(conditions) else math.inf

    def changes_of_presence(self) -> list[tuple[float, int, bool]]:
        """Each time a worker leaves or comes back, as (time, worker, whether it is there)."""
        changes = []
        for worker, conditions in enumerate(self.by_worker):
            there = True
            for condition in conditions:
                if condition.available != there:
                    there = condition.available
                    changes.append((condition.since, worker, there))
        return sorted(changes)


def read_conditions(path: Path, workers: int) -> Conditions:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise SettingError(f"trace: {path} cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SettingError(f"trace: {path} is not a CSV file ({error}).") from None
    if not rows or [cell.strip() for cell in rows[0]] != _HEADER:
        raise SettingError(f"trace: {path} must begin with the line {','.join(_HEADER)}.")
    by_worker: list[list[WorkerCondition]] = [[WorkerCondition(0.0)] for _ in range(workers)]
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        condition, who = _read_row(row, f"trace: line {number} of {path}", workers)
        for worker in who:
            conditions = by_worker[worker]
            if condition.since < conditions[-1].since:
                raise SettingError(f"trace: line {number} of {path} goes back in time.")
            if condition.since == conditions[-1].since:
                conditions.pop()
            conditions.append(condition)
    return Conditions(tuple(map(tuple, by_worker)))


def _read_row(row: Sequence[str], where: str, workers: int) -> tuple[WorkerCondition, range]:
    try:
        time, bandwidth, speed = float(row[0]), float(row[2]), float(row[3])
        available = {"1": True, "0": False}[row[4].strip()]
        name = row[1].strip()
        who = range(workers) if name == "*" else range(int(name), int(name) + 1)
    except (ValueError, KeyError, IndexError):
        raise SettingError(
            f"{where} is {','.join(row)!r}; it must be time_s,worker,bandwidth,speed,available, "
            "such as 60,3,0.5,1,1 (worker * means all)."
        ) from None
    if not (time >= 0 and bandwidth > 0 and speed > 0 and math.isfinite(time + bandwidth + speed)):
        raise SettingError(f"{where}: times must be at least 0 and factors above 0.")
    if who.start < 0 or who.stop > workers:
        raise SettingError(f"{where} names worker {name}, but there are 0 to {workers - 1}.")
    return WorkerCondition(time, bandwidth, speed, available), who
