"""Whether a run that goes on has the settings, the model and the data it was begun with.

From Python model and data are handed over again when a run is resumed, and the settings of a run of
the command line lie open in its folder. With others in their place a run would end with something
that neither of the two would have come to, and a finished one would be taken for another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from adaptcl.config import Config
from adaptcl.data.checksum import checksums
from adaptcl.errors import RunFolderError
from adaptcl.materials import Materials

Marks = dict[str, Any]
"""As JSON gives them back."""

_PLACES = ("data", "data_dir", "trace", "device", "precision", "threads", "checkpoint_every")
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
