"""Whether a run that goes on has the model and the data it was begun with.

From Python both are handed over again when a run is resumed. With others in their place it would
end with something that neither of the two would have come to.
"""

from __future__ import annotations

import zlib

from adaptcl.errors import RunFolderError
from adaptcl.materials import Materials
from adaptcl.snapshot import Tree


def marks(materials: Materials) -> Tree:
    """What model and data are recognised by: shapes of tensors, numbers of samples, labels."""
    tensors = materials.model.state_dict()
    return {
        "tensors": [[name, list(tensor.shape)] for name, tensor in tensors.items()],
        "samples": [len(part) for part in materials.parts],
        "labels": [zlib.crc32(part.labels.cpu().numpy().tobytes()) for part in materials.parts],
    }


def refuse_others(before: Tree, now: Tree) -> None:
    """An error if a run was begun with other marks than it would go on with."""
    if before["tensors"] != now["tensors"]:
        differing = min(
            {str(each) for each in before["tensors"]} ^ {str(each) for each in now["tensors"]},
            default="their order",
        )
        raise RunFolderError(
            f"The run was begun with another model: they differ in {differing}; give the model of "
            "the run, or choose another folder."
        )
    if before["samples"] != now["samples"]:
        raise RunFolderError(
            f"The run was begun with other data: its {len(before['samples'])} workers had "
            f"{sum(before['samples'])} samples, and now {len(now['samples'])} have "
            f"{sum(now['samples'])}; give the data of the run, or choose another folder."
        )
    if before["labels"] != now["labels"]:
        raise RunFolderError(
            "The run was begun with other data: workers have other labels now; give the data of "
            "the run, or choose another folder."
        )
