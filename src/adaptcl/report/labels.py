"""What a setting comes to in a run: its value as a text, or nothing where it has no effect.

A setting that does nothing in a run, such as σ where every bandwidth is given, tells nothing about
it, and runs that differ in nothing else do not differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adaptcl.config import JobSettings
from adaptcl.config.effects import CONDITIONS, has_effect
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report.runs import Run
from adaptcl.runs.folder_reader import is_network_run
from adaptcl.settings import declared
from adaptcl.training import Recipe

NONE = "none"
"""Stands for a setting that is left out or empty."""

_SIMULATED = frozenset(each.name for each in declared(EnvironmentSettings))
"""Settings that a run across a network has no use for."""


def effective(run: Run, name: str) -> str | None:
    """The value of a setting as a text; None where the setting does nothing."""
    if name in _SIMULATED and is_network_run(run.folder):
        return None
    if not has_effect(name, run.config):
        return None
    return _value_text(run.config.get(name))


def differing(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Those of the settings that have an effect in several of the runs, and not the same."""
    return [name for name in names if len({effective(run, name) for run in runs} - {None}) > 1]


def _value_text(value: Any) -> str:
    """As it would stand on the command line."""
    if value in (None, "", [], ()):
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        between = ";" if any(isinstance(each, list | tuple) for each in value) else ","
        return between.join(map(_value_text, value))
    return str(value)


# Whether runs are of one job: where they are not, a speed-up between them says little.
#
# The lists are made from the declared settings, so a setting that is new belongs to the job until
# somebody says that it does not.

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


# What runs are called where several are compared: by the settings that tell them apart.
#
# Where runs of different strategies differ in more than the strategy, their labels say so too: a
# reader must not take different jobs for one.

_LONGEST_VALUE = 24
"""A setting that takes more characters than this says too little in a legend."""
_FEW = 3
"""Up to so many settings that differ, all are named; of more, as few as tell the runs apart, and
each run's only where it departs from most of the others."""


def distinct_labels(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same runs, with labels no two of them share.

    Runs that share a label are told apart by the settings that differ and have an effect: by all
    of them if they are few, else by as few as it takes, and by the seed only if it takes that;
    where all settings agree, by their folders. Runs called by their strategy alone are called
    besides by what they have otherwise than runs of another strategy.
    """
    across = shared_differences(runs)
    labels = [run.label for run in runs]
    for label in dict.fromkeys(labels):
        places = [place for place, run in enumerate(runs) if run.label == label]
        alike = [runs[place] for place in places]
        marks = _distinguishing_marks(alike) if len(alike) > 1 else [""]
        for place, mark in zip(places, marks, strict=True):
            run = runs[place]
            beside = _beside_others(run, alike, across) if label == run.strategy else ""
            told = ", ".join(text for text in (beside, mark) if text)
            labels[place] = f"{label} ({told})" if told else label
    relabelled = tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))
    # A label made here may be the one another run came with.
    return relabelled if len(set(labels)) == len(labels) else distinct_labels(relabelled)


def _beside_others(run: Run, alike: Sequence[Run], across: Sequence[str]) -> str:
    """What differs from other strategies' runs, and not among those that share the label."""
    within = differing(alike, across)
    values = _values(run, [n for n in across if n in run.config and n not in within])
    told = {name: values[name] for name in list(values)[:_FEW]}
    return _text(told) + (", …" if len(values) > _FEW else "")


def _distinguishing_marks(runs: Sequence[Run]) -> list[str]:
    names = list({name: None for run in runs for name in run.config if name != "out"})
    every = differing(runs, names)
    of_the_method = [name for name in every if name not in ASIDE]
    last = [name for name in ASIDE if name in every]
    # What others make idle is asked after these others, which tell more.
    asked = sorted(of_the_method, key=lambda name: name in CONDITIONS)
    enough = _enough(runs, of_the_method if len(of_the_method) <= _FEW else [], [*asked, *last])
    chosen = [name for name in (*of_the_method, *last) if name in enough]
    if len(chosen) > _FEW:
        by_settings = _departures(runs, chosen, of_the_method)
    else:
        by_settings = [_settings_text(run, chosen) for run in runs]
    repeated = {mark for mark, times in Counter(by_settings).items() if times > 1}
    places = [place for place, mark in enumerate(by_settings) if mark in repeated]
    marks = list(by_settings)
    for place, folder in zip(places, _folder_marks([runs[p] for p in places]), strict=True):
        marks[place] = f"{marks[place]}, in {folder}" if marks[place] else folder
    return marks


def _folder_marks(runs: Sequence[Run]) -> list[str]:
    by_name = [run.folder.name for run in runs]
    by_path = [run.folder.as_posix() for run in runs]
    for marks in (by_name, by_path):
        if len(set(marks)) == len(runs):
            return marks
    return [f"{name}, {number}" for number, name in enumerate(by_path, start=1)]


def _enough(runs: Sequence[Run], chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    """The chosen names, and of the others those that tell more of the runs apart."""
    enough = list(chosen)
    for name in names:
        if _kinds(runs, [*enough, name]) > _kinds(runs, enough):
            enough.append(name)
    return enough


def _kinds(runs: Sequence[Run], names: Sequence[str]) -> int:
    return len({tuple(effective(run, name) for name in names) for run in runs})


def _settings_text(run: Run, names: Sequence[str]) -> str:
    """Those of the settings that the run has; that it has none, if it has none of them."""
    values = _values(run, names)
    told = {name: text for name, text in values.items() if text != NONE} or values
    return _text(told)


def _departures(runs: Sequence[Run], enough: Sequence[str], every: Sequence[str]) -> list[str]:
    """Of each run the settings in which it departs from most: every one if they are few."""
    usual = {
        name: Counter(effective(run, name) for run in runs).most_common(1)[0][0]
        for name in (*every, *enough)
    }
    texts = []
    for run in runs:
        odd = [name for name, text in _values(run, list(usual)).items() if text != usual[name]]
        told = odd if len(odd) <= _FEW else [name for name in odd if name in enough]
        texts.append(_text(_values(run, told)) or "as most of them")
    return texts


def _values(run: Run, names: Sequence[str]) -> dict[str, str]:
    return {name: text for name in names if (text := effective(run, name)) is not None}


def _text(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_shortened(text)}" for name, text in values.items())


def _shortened(text: str) -> str:
    """Of a path the end tells most, of anything else the beginning."""
    if len(text) <= _LONGEST_VALUE:
        return text
    if "/" in text:
        return "…" + text[1 - _LONGEST_VALUE :]
    kept = text[: _LONGEST_VALUE - 1]
    # Half a number of a list would read as another number.
    return (kept[: kept.rindex(",") + 1] if "," in kept else kept) + "…"
