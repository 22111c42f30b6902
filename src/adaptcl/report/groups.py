"""Runs told of as one: a single run, or all that differ only in their seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from adaptcl.report.labels import distinct_labels
from adaptcl.report.runs import Run

_NO_SETTING_OF_THE_METHOD = ("seed", "out")


@dataclass(frozen=True)
class Group:
    """One row of a table and one line of a figure: a run, or a mean over several."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the others in all that they share."""
        return self.runs[0]

    @property
    def prunes(self) -> bool:
        """Whether sub-models differed from worker to worker or over time in any of the runs."""
        return any(run.prunes for run in self.runs)

    @property
    def repeats_a_seed(self) -> bool:
        """Whether runs of it are one run, done again."""
        return len({run.config.get("seed") for run in self.runs}) < len(self.runs)


def groups(runs: Sequence[Run], *, over_seeds: bool = False) -> list[Group]:
    """The runs one by one, or those together that differ only in their seed.

    Unfinished runs are left out of a group, unless there is nothing else to tell of.
    """
    if not over_seeds:
        return [Group(run.label, (run,)) for run in distinct_labels(runs)]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in run.config.items() if k not in _NO_SETTING_OF_THE_METHOD}
        alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
    called = distinct_labels([together[0] for together in alike.values()])
    return [
        Group(run.label, _counted(together))
        for run, together in zip(called, alike.values(), strict=True)
    ]


def _counted(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.summary is not None) or (runs[0],)
