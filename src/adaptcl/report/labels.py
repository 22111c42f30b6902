"""What runs are called where several are compared: by the settings that tell them apart.

A setting that does nothing in a run, such as σ where every bandwidth is given, says nothing about
it, so it is not named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.network_file import is_network_run
from adaptcl.report.runs import Run
from adaptcl.settings import declared

_LONGEST_VALUE = 24
"""A setting that takes more characters than this says too little in a legend."""
_FEW = 3
"""Up to so many settings that differ, all are named; of more, as few as tell the runs apart, and
each run's only where it departs from most of the others."""
_LAST = ("seed", "device", "threads", "data_dir", "checkpoint_every")
"""Settings that are no part of a method: named where nothing else tells runs apart."""

_NONE = "none"

Settings = Mapping[str, Any]


def _is(name: str, value: str) -> Callable[[Settings], bool]:
    return lambda config: config.get(name) == value


def _without(name: str) -> Callable[[Settings], bool]:
    return lambda config: not config.get(name)


_HAS_EFFECT: Mapping[str, Callable[[Settings], bool]] = {
    "label_share": _is("partition", "by-label"),
    "concentration": _is("partition", "dirichlet"),
    "sigma": _without("bandwidths"),
    "bandwidth_max": _without("bandwidths"),
    "flops_share": _is("training_time", "profile"),
    "strength": lambda config: config.get("strategy") != "fedavg",
    "beta": _is("strategy", "adaptcl"),
    "late_updates": lambda config: bool(config.get("deadline")),
    "alpha": _without("pruned_rates"),
    "grow": _without("pruned_rates"),
    "max_pruned_rate": _without("pruned_rates"),
    "min_pruned_rate": _without("pruned_rates"),
    "min_retention": _without("pruned_rates"),
    "literal_min_retention": _without("pruned_rates"),
    "staleness_exponent": _is("staleness_weight", "polynomial"),
    "staleness_slope": _is("staleness_weight", "hinge"),
    "staleness_hinge": _is("staleness_weight", "hinge"),
    "width_levels": _without("worker_widths"),
}
"""For settings that other settings can make idle: whether they are not, in a run."""

_SIMULATED = frozenset(each.name for each in declared(EnvironmentSettings))
"""Settings that a run across a network has no use for."""


def distinct_labels(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same runs, with labels no two of them share.

    Runs that share a label are told apart by the settings that differ and have an effect: by all
    of them if they are few, else by as few as it takes, and by the seed only if it takes that;
    where all settings agree, by their folders. Labels that are distinct stay as they are.
    """
    shared = {label for label, times in Counter(run.label for run in runs).items() if times > 1}
    labels = [run.label for run in runs]
    for label in shared:
        places = [place for place, run in enumerate(runs) if run.label == label]
        marks = _distinguishing_marks([runs[place] for place in places])
        for place, mark in zip(places, marks, strict=True):
            labels[place] = f"{label} ({mark})"
    relabelled = tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))
    # A label made here may be the one another run came with.
    return relabelled if len(set(labels)) == len(labels) else distinct_labels(relabelled)


def _distinguishing_marks(runs: Sequence[Run]) -> list[str]:
    names = list({name: None for run in runs for name in run.config if name != "out"})
    differing = [
        name for name in names if len({_effective(run, name) for run in runs} - {None}) > 1
    ]
    of_the_method = [name for name in differing if name not in _LAST]
    last = [name for name in _LAST if name in differing]
    # What others make idle is asked after these others, which tell more.
    asked = sorted(of_the_method, key=lambda name: name in _HAS_EFFECT)
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
    return len({tuple(_effective(run, name) for name in names) for run in runs})


def _effective(run: Run, name: str) -> str | None:
    """The value of a setting as a text; None where the setting does nothing."""
    if name in _SIMULATED and is_network_run(run.folder):
        return None
    if name in _HAS_EFFECT and not _HAS_EFFECT[name](run.config):
        return None
    return _value_text(run.config.get(name))


def _settings_text(run: Run, names: Sequence[str]) -> str:
    """Those of the settings that the run has; that it has none, if it has none of them."""
    values = _values(run, names)
    told = {name: text for name, text in values.items() if text != _NONE} or values
    return _text(told)


def _departures(runs: Sequence[Run], enough: Sequence[str], every: Sequence[str]) -> list[str]:
    """Of each run the settings in which it departs from most: every one if they are few."""
    usual = {
        name: Counter(_effective(run, name) for run in runs).most_common(1)[0][0]
        for name in (*every, *enough)
    }
    texts = []
    for run in runs:
        odd = [name for name, text in _values(run, list(usual)).items() if text != usual[name]]
        told = odd if len(odd) <= _FEW else [name for name in odd if name in enough]
        texts.append(_text(_values(run, told)) or "as most of them")
    return texts


def _values(run: Run, names: Sequence[str]) -> dict[str, str]:
    return {name: text for name in names if (text := _effective(run, name)) is not None}


def _text(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_shortened(text)}" for name, text in values.items())


def _value_text(value: Any) -> str:
    """As it would stand on the command line."""
    if value in (None, "", [], ()):
        return _NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        between = ";" if any(isinstance(each, list | tuple) for each in value) else ","
        return between.join(map(_value_text, value))
    return str(value)


def _shortened(text: str) -> str:
    """Of a path the end tells most, of anything else the beginning."""
    if len(text) <= _LONGEST_VALUE:
        return text
    if "/" in text:
        return "…" + text[1 - _LONGEST_VALUE :]
    kept = text[: _LONGEST_VALUE - 1]
    # Half a number of a list would read as another number.
    return (kept[: kept.rindex(",") + 1] if "," in kept else kept) + "…"
