"""Groups of runs: one run, or all runs that differ only in their seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptcl.config.effects import has_effect
from adaptcl.report.comparisons.labels import (
    NEITHER_JOB_NOR_METHOD,
    distinct_labels,
    setting_text,
    words_of,
)
from adaptcl.report.saved_run import Run


@dataclass(frozen=True)
class RunGroup:
    """One row of a table and one line of a figure: one run, or several seeds."""

    label: str
    runs: tuple[Run, ...] = field(repr=False)

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def words(self) -> set[str]:
        """The parts of its label, its strategy and its settings, such as `codec=int8`."""
        settings = {f"{name}={setting_text(self.first, name)}" for name in self.first.config}
        return words_of(self.label) | settings | {self.first.strategy}

    @property
    def prunes(self) -> bool:
        """Whether sub-models differ between workers or over time in any of the runs."""
        return any(run.prunes for run in self.runs)

    @property
    def repeats_a_seed(self) -> bool:
        return len({run.config.get("seed") for run in self.runs}) < len(self.runs)


def group_runs(runs: Sequence[Run], *, over_seeds: bool = False) -> list[RunGroup]:
    """Group runs one by one, or over seeds those that differ only in their seed.

    An unfinished run is in a group only if the group has no finished one.
    """
    if not over_seeds:
        return [RunGroup(run.label, (run,)) for run in distinct_labels(runs)]
    together = alike_runs(runs)
    labelled = distinct_labels([each[0] for each in together])
    return [
        RunGroup(run.label, _finished_or_first(each))
        for run, each in zip(labelled, together, strict=True)
    ]


def alike_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that differ only in their seed, together."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        same = {
            name: value
            for name, value in run.config.items()
            if name not in NEITHER_JOB_NOR_METHOD
            and has_effect(name, run.config, networked=run.networked)
        }
        alike.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(run)
    return list(alike.values())


def _finished_or_first(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.summary is not None) or (runs[0],)
