"""Whether runs are of one job: where they are not, a speed-up between them says little.

The lists are made from the declared settings, so a setting that is new belongs to the job until
somebody says that it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.config import JobSettings
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report.effective import differing
from adaptcl.report.runs import Run
from adaptcl.settings import declared
from adaptcl.training import Recipe

ASIDE = ("seed", "device", "threads", "data_dir", "checkpoint_every")
"""Settings of where and how a run is computed, no part of job or method."""

_OF_THE_METHOD = ("strategy", "codec", "fixed", "averaging")
"""Settings that stand with the job's, but are what runs are compared for."""
_WORK = ("epochs", "batch_size")
"""How much work a round is; the recipe's other settings a method may have of its own."""
_MACHINE = ("device", "threads")
"""Settings that say how fast a training is where its time is measured."""

_JOB = tuple(
    each.name
    for group in (JobSettings, EnvironmentSettings)
    for each in declared(group)
    if each.name not in (*ASIDE, *_OF_THE_METHOD)
)

_SHARED = tuple(
    each.name
    for group in (JobSettings, Recipe, EnvironmentSettings)
    for each in declared(group)
    if each.name not in ("strategy", *ASIDE)
)
"""Settings that runs of every strategy have, and that tell of what they did."""


def unequal(runs: Sequence[Run]) -> list[str]:
    """In what the runs are different jobs: settings of the clock and of the work that differ."""
    measured = any(run.config.get("training_time") == "measured" for run in runs)
    clocks = ["clock"] if len({run.clock for run in runs}) > 1 else []
    return clocks + _differing(runs, [*_JOB, *_WORK, *(_MACHINE if measured else ())])


def shared_differences(runs: Sequence[Run]) -> list[str]:
    """Settings that runs of every strategy have and that differ, those of the method included."""
    return _differing(runs, _SHARED)


def _differing(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Among those that have a setting on record: older folders lack what is newer than they."""
    return [n for n in names if differing([run for run in runs if n in run.config], [n])]
