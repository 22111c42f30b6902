"""The complete settings of a run: gathered from all parts, read from TOML, written to TOML.

Keys are flat, and each means one thing wherever it stands: as a key of a TOML file, as a flag of
the command line, as an argument from Python. Later sources win: the preset, then the file, then
the flags.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from adaptcl import data
from adaptcl.codecs import CODECS, CodecClass, codec_class
from adaptcl.conditions import With
from adaptcl.engines.environment import EnvironmentSettings
from adaptcl.errors import SettingError
from adaptcl.settings import Setting, build, declared, is_own, setting
from adaptcl.strategies import STRATEGIES, StrategyClass, strategy_class
from adaptcl.training import Recipe
from adaptcl.training.trainers import PRECISIONS

DEFAULT_PRESET = "default"

_TAKEN = frozenset(STRATEGIES) | {
    *("preset", "out", "file", "help", "tls", "listen", "patience", "command", "known"),
    *("train", "test", "resume", "listeners"),
}
"""Names that mean something else: sections of a file, flags of commands, arguments from Python."""

_SEVERAL = ("strategy", "seed")
"""Of which a file may name several, for as many runs."""


@dataclass(frozen=True)
class JobSettings:
    """What is trained on what, by how many, for how long."""

    strategy: str = setting(
        "adaptcl", "the method of collaborative learning", choices=STRATEGIES, or_own=True
    )
    model: str = setting(
        "vgg16", "a model by name, or your own as package.module:factory(shape, classes)"
    )
    data: str = setting(
        "cifar10",
        "a data set by name, an .npz file, folder:PATH, or your own as package.module:load",
    )
    data_dir: str = setting("", "the folder that holds the data set's files")
    samples: int = setting(
        0, "train on this many samples of the data set, drawn at random; 0 is all", at_least=0
    )
    workers: int = setting(10, "number of workers (W)", at_least=1)
    rounds: int = setting(150, "number of rounds (T)", at_least=1)
    seed: int = setting(1, "fixes all randomness of the run", at_least=0, at_most=2**63 - 1)
    partition: str = setting(
        "iid",
        "how data is dealt to the workers",
        choices=("iid", "by-label", "dirichlet"),
    )
    label_share: float = setting(
        80.0,
        "by-label: per cent of the data that is dealt sorted by label (s)",
        at_least=0,
        at_most=100,
        condition=With("partition", "by-label"),
    )
    concentration: float = setting(
        0.5,
        "dirichlet: smaller makes the workers' labels more unequal",
        above=0,
        condition=With("partition", "dirichlet"),
    )
    fixed: tuple[str, ...] = setting(
        (), "module names (with * and ?) whose units are never cut, beside the model's own"
    )
    codec: str = setting("plain", "how updates travel to the server", choices=CODECS, or_own=True)
    evaluate_every: int = setting(1, "rounds from one test of the model to the next", at_least=1)
    averaging: float = setting(
        0.0,
        "the model that is tested and delivered is the mean of the global models of about this "
        "share of the rounds so far; 0 is the last one",
        at_least=0,
        below=1,
    )
    fresh_statistics: int = setting(
        0,
        "before the model is tested and delivered, measure the running statistics of its norm "
        "layers anew on so many training samples; 0 keeps the merged ones",
        at_least=0,
    )
    checkpoint_every: int = setting(
        1, "rounds from one checkpoint to the next; resume goes on from the last", at_least=1
    )
    threads: int = setting(
        0,
        "workers trained at the same time; 0 is one for each core, or on a GPU six, or three if "
        "tasks are short",
        at_least=0,
    )
    device: str = setting("cpu", "where models are trained, as PyTorch names it: cpu, cuda, …")
    precision: str = setting("tf32", "how a GPU multiplies", choices=PRECISIONS)


@dataclass(frozen=True)
class Config:
    """All settings of one run, checked."""

    job: JobSettings
    recipe: Recipe
    environment: EnvironmentSettings
    strategy: Any
    """The settings of the chosen strategy."""
    codec: Any
    """The settings of the chosen codec."""

    def values(self) -> dict[str, Any]:
        """Every setting that has a part in this run, by name."""
        groups = (self.job, self.recipe, self.environment, self.strategy, self.codec)
        return {k: v for group in groups for k, v in dataclasses.asdict(group).items()}

    @property
    def pruning(self) -> str:
        """The pruning order, if the strategy prunes by one; else empty."""
        return str(getattr(self.strategy, "pruning", ""))

    @property
    def named_methods(self) -> tuple[str, ...]:
        """What has a part in the run that may be code of the user's own."""
        return (self.job.strategy, self.job.codec, self.pruning)

    def anchored(self) -> Config:
        """The same with absolute paths, so that it means the same wherever a run is resumed."""
        job, environment = self.job, self.environment
        return dataclasses.replace(
            self,
            job=dataclasses.replace(
                job, data=data.anchored(job.data), data_dir=_absolute(job.data_dir)
            ),
            environment=dataclasses.replace(environment, trace=_absolute(environment.trace)),
        )

    def to_toml(self) -> str:
        """A complete file that makes the same run again."""
        return tomli_w.dumps({k: v for k, v in self.values().items() if v is not None})


def configure(values: Mapping[str, Any], known: Mapping[str, Setting] | None = None) -> Config:
    """Check raw values, name by name, and make a configuration of them.

    A section named like a strategy holds values that are meant for this strategy alone, and for
    the user's own that are made of it. `known` are the settings there may be; other ones where
    several strategies are configured together.
    """
    known = all_settings(values) if known is None else known
    sections = {name: _section(name, values[name]) for name in values if _heads_section(name)}
    top = {name: value for name, value in values.items() if name not in sections}
    for name, value in itertools.chain(top.items(), *(each.items() for each in sections.values())):
        if name not in known:
            raise unknown_setting(name, known)
        known[name].checked(value)
    for name in _sections_for(build(JobSettings, top).strategy):
        top |= sections.get(name, {})
    values = top
    job = build(JobSettings, values)
    return Config(
        job=job,
        recipe=build(Recipe, values),
        environment=build(EnvironmentSettings, values),
        strategy=build(strategy_class(job.strategy).Settings, values),
        codec=build(codec_class(job.codec).Settings, values),
    )


def _sections_for(strategy: str) -> list[str]:
    """The names of the sections that a strategy reads; the later win."""
    if not is_own(strategy):
        return [strategy]
    made_of = getattr(strategy_class(strategy), "__mro__", ())
    return [*(name for name, ours in STRATEGIES.items() if ours in made_of), strategy]


def over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Raw values on top of others: what is said above wins, also against a section below."""
    merged = {**lower, **upper}
    for name in lower:
        if _heads_section(name):
            below = {k: v for k, v in lower[name].items() if k not in upper}
            merged[name] = {**below, **_section(name, upper.get(name, {}))}
    return merged


def _heads_section(name: str) -> bool:
    return name in STRATEGIES or is_own(name)


def _section(name: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{name} is {values!r}, but a strategy's name must head a table of settings, [{name}]."
        )
    for each in (*declared(JobSettings), *declared(EnvironmentSettings)):
        if each.name in values:
            raise SettingError(
                f"[{name}] sets {each.name}, which is the same for all strategies of a job."
            )
    return values


def all_settings(values: Mapping[str, Any] | None = None) -> Mapping[str, Setting]:
    """Every setting there is, by name, those of all strategies and codecs included.

    Those of the user's own strategies and codecs are there if the raw `values` name them.
    """
    known = dict(_settings_of_ours())
    for name, own in _own_classes(values or {}).items():
        for new in declared(own.Settings):
            _refuse_taken(name, new, known)
            known.setdefault(new.name, new)
    return known


def _own_classes(values: Mapping[str, Any]) -> dict[str, StrategyClass | CodecClass]:
    """By name; several strategies have commas between."""
    strategies = [name.strip() for name in str(values.get("strategy", "")).split(",")]
    own: dict[str, StrategyClass | CodecClass] = {}
    own |= {name: strategy_class(name) for name in strategies if is_own(name)}
    own |= {name: codec_class(name) for name in [values.get("codec")] if is_own(name)}
    return own


@cache
def _settings_of_ours() -> Mapping[str, Setting]:
    groups: list[type] = [JobSettings, Recipe, EnvironmentSettings]
    groups += [s.Settings for s in STRATEGIES.values()]
    groups += [c.Settings for c in CODECS.values()]
    known: dict[str, Setting] = {}
    for each in itertools.chain.from_iterable(map(declared, groups)):
        known.setdefault(each.name, each)
    return known


def _refuse_taken(name: str, new: Setting, known: Mapping[str, Setting]) -> None:
    """An error if a class of that name gives a new meaning to a name; a new default is none."""
    before = known.get(new.name, new)
    if new.name in _TAKEN or dataclasses.replace(new, default=before.default) != before:
        raise SettingError(
            f"{name} has a setting {new.name}, but that name has another meaning already; choose "
            "another name."
        )


def unknown_setting(name: str, known: Mapping[str, Setting] | None = None) -> SettingError:
    """The sentence for a name that is none of the `known`, with the nearest one there is."""
    known = _settings_of_ours() if known is None else known
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`adaptcl run --help` lists them all."
    return SettingError(f"There is no setting {name!r}; {hint}")


def read_toml(path: Path, preset_name: str | None = None) -> dict[str, Any]:
    """The raw values of a TOML file, on top of those of a preset.

    That is the preset called `preset_name`, else the one the file names by `preset = "name"`,
    else the default one.
    """
    values = _file_values(path)
    named = values.pop("preset", DEFAULT_PRESET)
    return over(preset(preset_name or named), values)


def departures(path: Path, preset_name: str | None = None) -> list[str]:
    """The settings that a TOML file has otherwise than its preset, or the default where that has
    none; without those of its sections, each of which is for one strategy."""
    values = _file_values(path)
    below = preset(preset_name or values.pop("preset", DEFAULT_PRESET))
    known = all_settings(values)
    chosen = [name.strip() for name in str(values.get("strategy", "")).split(",") if name.strip()]
    usual = [_usual(below, each, known) for each in chosen or [known["strategy"].default]]
    return [
        name
        for name, value in values.items()
        if name in known
        and name not in _SEVERAL
        and known[name].checked(value) not in [known[name].checked(each[name]) for each in usual]
    ]


def _usual(
    preset_values: Mapping[str, Any], strategy: str, known: Mapping[str, Setting]
) -> dict[str, Any]:
    """By name what a setting is with a preset and a strategy, which may have its own defaults."""
    own = {each.name: each.default for each in declared(strategy_class(strategy).Settings)}
    usual = {each.name: each.default for each in known.values()} | own | dict(preset_values)
    for section in _sections_for(strategy):
        usual |= preset_values.get(section, {})
    return usual


def _file_values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"The settings file {path} does not exist.") from None
    except OSError as error:
        raise SettingError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The settings file {path} is not TOML: {error}.") from None


def presets() -> list[str]:
    """The names of the ready-made presets."""
    files = resources.files("adaptcl") / "presets"
    return sorted(os.path.splitext(f.name)[0] for f in files.iterdir() if f.name.endswith(".toml"))


def preset(name: Any) -> dict[str, Any]:
    """The raw values of a ready-made preset."""
    if name not in presets():
        raise SettingError(f"preset is {name!r}, but it must be one of {', '.join(presets())}.")
    return tomllib.loads(_preset_text(name))


def preset_summary(name: str) -> str:
    """What a preset is for: the comment it begins with."""
    comments = itertools.takewhile(
        lambda line: line.startswith("#"), _preset_text(name).splitlines()
    )
    return " ".join(line.removeprefix("#").strip() for line in comments)


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""


def _preset_text(name: str) -> str:
    file = resources.files("adaptcl") / "presets" / f"{name}.toml"
    return file.read_text(encoding="utf-8")
