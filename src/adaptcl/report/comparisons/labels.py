"""A label is the strategy and the settings in which a run differs from the others.

Only settings that have an effect count. Where runs of different strategies differ in more than the
strategy, their labels say so too, so that no reader takes different jobs for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adaptcl.config.config import SHARED_GROUPS
from adaptcl.config.effects import CONDITIONS, WHERE_COMPUTED, has_effect
from adaptcl.config.job import JobSettings
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.report.saved_run import Run
from adaptcl.settings import as_typed, declared

NEITHER_JOB_NOR_METHOD = ("seed", *WHERE_COMPUTED)

_METHOD = ("strategy", "codec", "codec_down", "fixed", "averaging")
"""Settings of the job's group that belong to the method."""
_WORK = ("epochs", "batch_size")
"""The work of a round; a method may choose the recipe's other settings."""

# These lists come from the declared settings: a new setting belongs to the job until it is named
# above.
_JOB = tuple(
    each.name
    for group in (JobSettings, EnvironmentSettings)
    for each in declared(group)
    if each.name not in (*NEITHER_JOB_NOR_METHOD, *_METHOD)
)
_CONDITIONS = (
    *("model", "data", "samples", "workers", "partition", "label_share", "concentration"),
    *(each.name for each in declared(EnvironmentSettings)),
)
"""What a method is up against: its results are compared with others under the same conditions."""
_SHARED = tuple(
    each.name
    for group in SHARED_GROUPS
    for each in declared(group)
    if each.name not in ("strategy", *NEITHER_JOB_NOR_METHOD)
)
"""Settings that runs of every strategy have."""

_LONGEST_VALUE = 24  # a longer value says too little in a legend
_FEW = 3
"""How many differing settings a label names; where that is too little, it names the folder too."""


def setting_text(run: Run, name: str) -> str | None:
    """The value of a setting as text; None if the setting has no effect in the run."""
    if not has_effect(name, run.config, networked=run.networked):
        return None
    return as_typed(run.config.get(name))


def differing(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """The settings that have different effects in these runs."""
    return [name for name in names if len({setting_text(run, name) for run in runs} - {None}) > 1]


def job_differences(runs: Sequence[Run]) -> list[str]:
    """Settings of the clock and of the work that differ: what makes the runs different jobs."""
    clocks = ["clock"] if len({run.clock for run in runs}) > 1 else []
    return clocks + _recorded_differences(runs, [*_JOB, *_WORK])


def differing_conditions(runs: Sequence[Run]) -> list[str]:
    """For each run, the conditions in which the runs differ, as text."""
    names = _recorded_differences(runs, _CONDITIONS)
    return [_text(_values(run, names)) for run in runs]


def shared_differences(runs: Sequence[Run]) -> list[str]:
    """Settings that runs of every strategy have and that differ here, the method's included."""
    return _recorded_differences(runs, _SHARED)


def setting_differences(runs: Sequence[Run]) -> list[str]:
    """Settings that differ between strategies that all have them, or within one strategy."""
    by_strategy: dict[str, list[Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy, []).append(run)
    names = {n: None for run in runs for n in run.config if n not in NEITHER_JOB_NOR_METHOD}
    within = [_recorded_differences(alike, list(names)) for alike in by_strategy.values()]
    differ = {*shared_differences(runs), *(name for each in within for name in each)}
    return [name for name in names if name in differ]


def _recorded_differences(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Compare a setting only among runs that recorded it: older folders lack newer settings."""
    return [n for n in names if differing([run for run in runs if n in run.config], [n])]


def words_of(label: str) -> set[str]:
    """`fedavg (sigma=2, codec=int8)` without its order: `fedavg`, `sigma=2` and `codec=int8`."""
    method, _, settings = label.removesuffix(")").partition(" (")
    return {method, *settings.split(", ")} - {""}


def label_in_common(labels: Sequence[str]) -> str:
    """`fedavg (codec=int8)` of labels that differ in other settings; empty if there is none."""
    if not labels:
        return ""
    method, _, settings = labels[0].removesuffix(")").partition(" (")
    words = set.intersection(*map(words_of, labels))
    common = ", ".join(each for each in settings.split(", ") if each in words)
    return f"{method} ({common})" if common else method


def distinct_labels(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same runs with labels of which no two are equal.

    Runs that share a label are set apart by the first few settings that differ, by the seed only if
    these do not, and at last by their folders. A run labelled by its strategy alone also gets the
    settings in which it differs from runs of other strategies.
    """
    across = shared_differences(runs)
    labels = [run.label for run in runs]
    for label in dict.fromkeys(labels):
        places = [place for place, run in enumerate(runs) if run.label == label]
        alike = [runs[place] for place in places]
        marks = _suffixes(alike) if len(alike) > 1 else [""]
        for place, mark in zip(places, marks, strict=True):
            run = runs[place]
            others = _differences_from_others(run, alike, across) if label == run.strategy else ""
            added = _in_one_order(", ".join(text for text in (others, mark) if text), runs)
            labels[place] = f"{label} ({added})" if added else label
    relabelled = tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))
    # A label made here may be the one another run came with.
    return relabelled if len(set(labels)) == len(labels) else distinct_labels(relabelled)


def _in_one_order(parts: str, runs: Sequence[Run]) -> str:
    """The parts of a label in the order of settings files; seeds and folders stay last."""
    names = list({name: None for run in runs for name in run.config})
    order = {n: place for place, n in enumerate(names) if n not in NEITHER_JOB_NOR_METHOD}
    texts = parts.split(", ")
    return ", ".join(sorted(texts, key=lambda text: order.get(text.split("=")[0], len(names))))


def _differences_from_others(run: Run, alike: Sequence[Run], across: Sequence[str]) -> str:
    """Settings that differ from other strategies' runs but not among runs of this label."""
    within = differing(alike, across)
    values = _values(run, [n for n in across if n in run.config and n not in within])
    named = {name: values[name] for name in list(values)[:_FEW]}
    return _text(named) + (", …" if len(values) > _FEW else "")


def _suffixes(runs: Sequence[Run]) -> list[str]:
    """What to add to the label that these runs share, to tell them apart."""
    every = differing(runs, list({name: None for run in runs for name in run.config}))
    of_method = [name for name in every if name not in NEITHER_JOB_NOR_METHOD]
    # Settings that depend on others come after them, because those say more.
    most = sorted(of_method, key=lambda name: name in CONDITIONS)[:_FEW]
    chosen = [name for name in of_method if name in most]
    marks = [_settings_text(run, chosen) for run in runs]
    for name in (each for each in NEITHER_JOB_NOR_METHOD if each in every):
        if len(set(marks)) < len(runs):
            chosen.append(name)
            marks = [_settings_text(run, chosen) for run in runs]
    places = [place for place, mark in enumerate(marks) if marks.count(mark) > 1]
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


def _settings_text(run: Run, names: Sequence[str]) -> str:
    """The settings that are set in the run; if none of them is, all of them."""
    values = _values(run, names)
    return _text({name: text for name, text in values.items() if text != "none"} or values)


def _values(run: Run, names: Sequence[str]) -> dict[str, str]:
    return {name: text for name in names if (text := setting_text(run, name)) is not None}


def _text(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_shortened(text)}" for name, text in values.items())


def _shortened(text: str) -> str:
    """Keep the end of a path and the beginning of anything else."""
    if len(text) <= _LONGEST_VALUE:
        return text
    if "/" in text and "," not in text:  # links have both: 20/5,3/1
        return "…" + text[1 - _LONGEST_VALUE :]
    kept = text[: _LONGEST_VALUE - 1]
    # Half a number of a list would read as another number.
    return (kept[: kept.rindex(",") + 1] if "," in kept else kept) + "…"
