"""Whether a run that goes on has the settings, the model and the data it was begun with.

From Python model and data are handed over again when a run is resumed, and the settings of a run of
the command line lie open in its folder. With others in their place a run would end with something
that neither of the two would have come to, and a finished one would be taken for another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptcl.config import Config
from adaptcl.config.effects import WHERE_COMPUTED
from adaptcl.data.samples import checksums
from adaptcl.errors import RunFolderError
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.folder_reader import is_network_run, read_marks
from adaptcl.runs.materials import Materials
from adaptcl.settings import is_custom
from adaptcl.strategies import Strategy, strategy_class
from adaptcl.strategies.asynchronous import Asynchronous

Marks = dict[str, Any]
"""As JSON gives them back."""

_PLACES = ("data", "trace", *WHERE_COMPUTED)
"""Settings that may change when files are moved, or when a run goes on on another machine."""


def marks(config: Config, materials: Materials) -> Marks:
    """What a run is recognised by.

    The values a model begins with are not among it: a run goes on from its own.
    """
    told = {name: value for name, value in config.values().items() if name not in _PLACES}
    tensors = materials.model.state_dict()
    found = {
        "settings": told,
        "model": {
            "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
            "code": zlib.crc32(str(materials.model).encode()),
            "name": type(materials.model).__name__,
        },
        "samples": [len(part) for part in materials.parts],
        "data": [checksums(part) for part in materials.parts],
        "test": checksums(materials.test),
        "origin": materials.origin,
    }
    as_read: Marks = json.loads(json.dumps(found))
    return as_read


def refuse_others(before: Marks, now: Marks) -> None:
    """An error if a run was begun with other marks than it would go on with.

    More rounds are none: whether they can follow is not to be seen from the marks.
    """
    refuse_other_settings(before["settings"], now["settings"])
    _refuse_model(before["model"], now["model"])
    if before["samples"] != now["samples"]:
        raise RunFolderError(
            f"The run was begun with other data: its {len(before['samples'])} workers had "
            f"{sum(before['samples'])} samples, and now {len(now['samples'])} have "
            f"{sum(now['samples'])}; give the data of the run, or choose another folder."
        )
    for name, part in (("data", "workers have"), ("test", "the test data has")):
        if before[name] != now[name]:
            raise RunFolderError(
                f"The run was begun with other data: {part} other inputs or labels now; give the "
                "data of the run, or choose another folder."
            )


def refuse_other_settings(before: Marks, now: Mapping[str, Any]) -> None:
    """An error if a setting is another one now; not if there are more rounds."""
    for name in (each for each in before if each in now):  # a later version may have more or fewer
        if name == "rounds" and now[name] > before[name]:
            continue
        if before[name] != now[name]:
            raise RunFolderError(
                f"The run was begun with other settings: {name} was {before[name]!r} and is "
                f"{now[name]!r} now; put it back, or choose another folder."
            )


def _refuse_model(before: Marks, now: Marks) -> None:
    tensors, own = before["tensors"], now["tensors"]
    differing = [name for name in {**tensors, **own} if tensors.get(name) != own.get(name)]
    if differing:
        where = f"they differ in {differing[0]}"
    elif list(tensors) != list(own):
        where = "the order of their tensors differs"
    elif before["code"] != now["code"]:
        where = "they print differently"
    else:
        return
    raise RunFolderError(
        f"The run was begun with another model: {where}; give the model of the run, or choose "
        "another folder."
    )


# Runs that go on to more rounds than they were begun with.
#
# A run made longer must end where one that had as many rounds from the start would have ended.
# That holds if it goes on from a moment at which the number of rounds had not yet made a
# difference. A strategy with a barrier does nothing with that number but end, so the checkpoint
# before the last round will do. Workers without a barrier stop when they have done their rounds,
# the fastest first, and from then on the others learn what they would not have learnt in a longer
# run.


def may_go_further(folder: Path, strategy: Strategy, name: str) -> bool:
    """Whether a run of more rounds would have come to where the one in a folder is now."""
    if is_network_run(folder) or (is_custom(name) and not _says_so(type(strategy))):
        return False
    if isinstance(strategy, Asynchronous):
        return max(strategy.done) < strategy.rounds
    return not strategy.finished


def is_to_go_further(folder: Path, config: Config) -> bool:
    """Whether a run was begun with fewer rounds than it is to have now."""
    begun = read_marks(folder)
    return begun is not None and bool(begun["settings"]["rounds"] < config.job.rounds)


def lengthen(folder: RunFolder, config: Config, marks: dict[str, Any]) -> None:
    """Make a run, finished or not, one of more rounds; an error if it would not end as such a one.

    `marks` are those of the longer run. What is killed in between goes on like any other run.
    """
    rounds = config.job.rounds
    if is_network_run(folder.path):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: only simulated runs can, not those "
            "across a network."
        )
    checkpoint = folder.checkpoint_for_more()
    begins_anew = checkpoint is None and not folder.finished
    if not begins_anew and not (checkpoint or {}).get("may_go_further"):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {_reason(config)}; begin a run of "
            f"{rounds} rounds in another folder."
        )
    folder.begin_again(config.to_toml(), marks)


def _reason(config: Config) -> str:
    chosen = strategy_class(config.job.strategy)
    if is_custom(config.job.strategy) and not _says_so(chosen):
        return (
            f"{config.job.strategy} does not say, by extendable = True, that nothing but its end "
            "depends on their number"
        )
    if isinstance(chosen, type) and issubclass(chosen, Asynchronous):
        return "workers that had done all their rounds have stopped, which changes what others do"
    return "it has no checkpoint from before its last round"


def _says_so(chosen: object) -> bool:
    """Not what it inherits: who adds to a strategy of ours may have added what depends on it."""
    return bool(vars(chosen).get("extendable", False))
