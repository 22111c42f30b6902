"""Which group of runs the others are compared with: one for each of the conditions.

It is of the strategy `fedavg`, else `fedavg-s`, else the first that `adaptcl strategies` lists, or
of what the user named. Of several groups of that strategy under the same conditions it is the one
that ends best: compared with a badly set baseline, anything looks good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from adaptcl.errors import SettingError
from adaptcl.report.comparisons.groups import RunGroup
from adaptcl.report.comparisons.labels import differing_conditions, words_of
from adaptcl.report.comparisons.learning_curve import learning_curve
from adaptcl.report.saved_run import by_strategy

BASELINES = ("fedavg", "fedavg-s")
"""Strategies that others are compared with, the first one that is there."""


def baselines_of(groups: Sequence[RunGroup], name: str | None = None) -> list[RunGroup]:
    """The baseline of each group: the one of its conditions, else the one of all groups."""
    candidates = _candidates(groups, name)
    usual = strongest(candidates)
    conditions = differing_conditions([group.first for group in groups])
    alike: dict[str, list[RunGroup]] = {}
    for group, under in zip(groups, conditions, strict=True):
        alike.setdefault(under, []).append(group)

    def chosen(together: Sequence[RunGroup]) -> RunGroup:
        there = [group for group in together if any(group is each for each in candidates)]
        return strongest(there) if there and len(together) > 1 else usual

    return [chosen(alike[under]) for under in conditions]


def _candidates(groups: Sequence[RunGroup], name: str | None) -> list[RunGroup]:
    """The groups of one strategy that may be a baseline, whatever the order of the groups."""
    named = groups if name is None else _named(groups, name)
    first_runs = {id(group.first): group for group in named}
    ordered = [first_runs[id(run)] for run in by_strategy([group.first for group in named])]
    there = [group.first.strategy for group in ordered]
    usual = next((each for each in BASELINES if each in there), there[0])
    return [group for group in ordered if group.first.strategy == usual]


def _named(groups: Sequence[RunGroup], name: str) -> list[RunGroup]:
    """The groups of this label, with these parts of it in any order, or with this folder."""
    asked, folder = words_of(name), Path(name).resolve()
    found = (
        [group for group in groups if group.label == name]
        or [group for group in groups if asked <= group.words]
        or [group for group in groups if folder in [run.folder.resolve() for run in group.runs]]
    )
    if not found:
        labels = ", ".join(group.label for group in groups)
        raise SettingError(f"There is no run {name!r} to compare with; there are {labels}.")
    return found


def strongest(groups: Sequence[RunGroup]) -> RunGroup:
    """The group that ends best, a finished one if there is any."""

    def strength(group: RunGroup) -> tuple[bool, float]:
        measure = group.first.measure
        ends = [learning_curve(run.rounds, measure).last for run in group.runs]
        known = [measure.gain(each, 0.0) for each in ends if each is not None]
        return group.first.summary is not None, fmean(known) if known else -math.inf

    return max(groups, key=strength)
