"""Checks that a resumed run has the settings, the model and the data it was begun with.

From Python, model and data are given again when a run is resumed, and the settings of a run lie
open in its folder. If any of them changed, the run would end with a model that belongs to neither
configuration.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from adaptcl.config import Config
from adaptcl.config.effects import WHERE_COMPUTED
from adaptcl.data.samples import checksums
from adaptcl.errors import RunFolderError
from adaptcl.runs.workload import Workload

Marks = dict[str, Any]
"""What a run is recognised by, as JSON gives it back."""

_PLACES = ("data", "trace", *WHERE_COMPUTED)
"""Settings that may change when files are moved, or when a run goes on on another machine."""


def marks(config: Config, workload: Workload) -> Marks:
    """What a run is recognised by.

    The first values of the model do not count: a resumed run goes on from its checkpoint.
    """
    settings = {name: value for name, value in config.values().items() if name not in _PLACES}
    tensors = workload.model.state_dict()
    found = {
        "settings": settings,
        "model": {
            "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
            "code": zlib.crc32(str(workload.model).encode()),
            "name": type(workload.model).__name__,
        },
        "samples": [len(part) for part in workload.worker_samples],
        "data": [checksums(part) for part in workload.worker_samples],
        "test": checksums(workload.test),
        "origin": workload.origin,
    }
    as_read: Marks = json.loads(json.dumps(found))
    return as_read


def refuse_other_run(before: Marks, now: Marks) -> None:
    """An error if the run was begun with anything else; more rounds are allowed."""
    refuse_other_settings(before["settings"], now["settings"])
    _refuse_other_model(before["model"], now["model"])
    if before["samples"] != now["samples"]:
        raise RunFolderError(
            f"The run was begun with other data: its {len(before['samples'])} workers had "
            f"{sum(before['samples'])} samples, and now {len(now['samples'])} have "
            f"{sum(now['samples'])}; give the data of the run, or choose another folder."
        )
    for name, holder in (("data", "workers have"), ("test", "the test data has")):
        if before[name] != now[name]:
            raise RunFolderError(
                f"The run was begun with other data: {holder} other inputs or labels now; give "
                "the data of the run, or choose another folder."
            )


def refuse_other_settings(before: Marks, now: Mapping[str, Any]) -> None:
    """An error if a setting has changed; more rounds are allowed."""
    for name in (each for each in before if each in now):  # a later version may have more or fewer
        if name == "rounds" and now[name] > before[name]:
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
