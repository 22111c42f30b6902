"""Resuming a run: is it the same run, and may it go on to more rounds?

`cli/resume.py` and `api/run.py` find out what there is to resume. `RunFolder.left_off` gives the
checkpoint and the rounds before it, `Checkpoints.restore` puts evaluator and stop rule back, and
`Loop.run(resume=…)` the strategy and the transport.

From Python, model and data are given again when a run is resumed, and the settings of a run lie
open in its folder. If any of them changed, the run would end with a model that belongs to neither
configuration.

A run that goes on to more rounds must end where a run with that many rounds from the start would
have ended. So it must go on from a moment at which the number of rounds had made no difference yet.
A strategy with a barrier uses that number only to end, so the checkpoint before the last round will
do. Workers without a barrier stop when they have done their rounds, the fastest first. From then on
the others learn what they would not have learnt in a longer run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl.config.config import Config
from adaptcl.config.effects import WHERE_COMPUTED
from adaptcl.data.samples import checksums
from adaptcl.errors import RunFolderError
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import is_network_run, read_finished, read_marks
from adaptcl.runs.workload import Workload
from adaptcl.settings import is_custom
from adaptcl.strategies import Strategy, strategy_class
from adaptcl.strategies.asynchronous import Asynchronous

Marks = dict[str, Any]  # what a run is recognised by, as JSON gives it back

_PLACES = ("data", "trace", *WHERE_COMPUTED)
"""Settings that may change when files are moved, or when a run goes on on another machine."""


def recognise(folder: RunFolder, config: Config, workload: Workload) -> None:
    """Note what a run is begun with; an error if it goes on with anything but more rounds."""
    now, before = marks(config, workload), read_marks(folder.path)
    if before is None:
        folder.save_marks(now)
    else:
        refuse_other_run(before, now, diverged=folder.diverged)
        if before["settings"]["rounds"] != now["settings"]["rounds"]:
            extend_run(folder, config, now)
        elif folder.diverged:
            folder.change_settings(config.to_toml(), now)


def marks(config: Config, workload: Workload) -> Marks:
    """What a run is recognised by.

    The first values of the model do not count: a resumed run goes on from its checkpoint.
    """
    settings = {name: value for name, value in config.values().items() if name not in _PLACES}
    found = {
        "settings": settings,
        "model": model_marks(workload.model),
        "samples": [len(part) for part in workload.worker_samples],
        "data": [checksums(part) for part in workload.worker_samples],
        "test": checksums(workload.test),
        "origin": workload.origin,
    }
    if workload.held_back:
        found["held_back"] = [checksums(part) for part in workload.held_back]
    as_read: Marks = json.loads(json.dumps(found))
    return as_read


AGAINST_DIVERGENCE = ("learning_rate", "learning_rate_decay", "momentum", "clip_norm")
"""Settings that may change when a run that diverged goes on."""


def model_marks(model: nn.Module) -> Marks:
    """What a model is recognised by: its tensors and its printed form, not its values."""
    return {
        "tensors": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "code": zlib.crc32(str(model).encode()),
        "name": type(model).__name__,
    }


def refuse_other_run(before: Marks, now: Marks, *, diverged: bool = False) -> None:
    """An error if the run was begun with anything else; more rounds are allowed, and after a
    divergence another learning rate."""
    changeable = AGAINST_DIVERGENCE if diverged else ()
    refuse_other_settings(before["settings"], now["settings"], changeable)
    _refuse_other_model(before["model"], now["model"])
    if before["samples"] != now["samples"]:
        raise RunFolderError(
            f"The run was begun with other data: its {len(before['samples'])} workers had "
            f"{sum(before['samples'])} samples, and now {len(now['samples'])} have "
            f"{sum(now['samples'])}; give the data of the run, or choose another folder."
        )
    for name, holder in (
        ("data", "workers have"),
        ("test", "the test data has"),
        ("held_back", "what workers hold back has"),
    ):
        if before.get(name) != now.get(name):
            raise RunFolderError(
                f"The run was begun with other data: {holder} other inputs or labels now; give "
                "the data of the run, or choose another folder."
            )


def refuse_other_settings(
    before: Marks, now: Mapping[str, Any], changeable: Sequence[str] = ()
) -> None:
    """An error if a setting has changed; more rounds are allowed."""
    for name in (each for each in before if each in now):  # a later version may have more or fewer
        if name in changeable or (name == "rounds" and now[name] > before[name]):
            continue
        if before[name] != now[name]:
            raise RunFolderError(
                f"The run was begun with other settings: {name} was {before[name]!r} and is "
                f"{now[name]!r} now; put it back, or choose another folder."
            )


def _refuse_other_model(before: Marks, now: Marks) -> None:
    old, new = before["tensors"], now["tensors"]
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if differing:
        where = f"they differ in {differing[0]}"
    elif list(old) != list(new):
        where = "the order of their tensors differs"
    elif before["code"] != now["code"]:
        where = "they print differently"
    else:
        return
    raise RunFolderError(
        f"The run was begun with another model: {where}; give the model of the run, or choose "
        "another folder."
    )


def can_be_extended(folder: Path, strategy: Strategy, name: str) -> bool:
    """Whether a longer run would be in the same state as the run in this folder is now."""
    if is_network_run(folder) or (is_custom(name) and not _is_extendable(type(strategy))):
        return False
    if isinstance(strategy, Asynchronous):
        return max(strategy.done) < strategy.rounds
    return not strategy.finished


def extend_run(folder: RunFolder, config: Config, marks: dict[str, Any]) -> None:
    """Give a run, finished or not, more rounds; an error if it would end differently.

    `marks` are those of the longer run. A run that is killed meanwhile can be resumed as any other.
    """
    rounds = config.job.rounds
    if is_network_run(folder.path):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: only simulated runs can, not those "
            "across a network."
        )
    finished = read_finished(folder.path)
    checkpoint = folder.checkpoint()
    stopped_by = finished[0].stopped_by if finished else (checkpoint or {}).get("stopped_by")
    if stopped_by is not None:
        who = "a listener" if stopped_by.startswith("listener") else stopped_by
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {who} ended it before its rounds "
            "were done, and more rounds do not change that; begin another run in another folder."
        )
    begins_anew = checkpoint is None and not folder.finished
    if not begins_anew and not (checkpoint or {}).get("may_go_further"):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {_reason(config)}; begin a run of "
            f"{rounds} rounds in another folder."
        )
    folder.begin_again(config.to_toml(), marks)


def _reason(config: Config) -> str:
    chosen = strategy_class(config.job.strategy)
    if is_custom(config.job.strategy) and not _is_extendable(chosen):
        return (
            f"{config.job.strategy} does not say, by extendable = True, that nothing but its end "
            "depends on their number"
        )
    if isinstance(chosen, type) and issubclass(chosen, Asynchronous):
        return "workers that had done all their rounds have stopped, which changes what others do"
    return "it has no checkpoint from before its last round"


def _is_extendable(chosen: object) -> bool:
    """Whether the class itself says so. An inherited word does not count: a subclass may use the
    number of rounds for something else."""
    return bool(vars(chosen).get("extendable", False))
