"""Using what a finished run left in its folder: the whole model, or one worker's sub-model."""

from __future__ import annotations

import copy
from pathlib import Path

from torch import Tensor, nn

from adaptcl import models
from adaptcl.errors import RunFolderError, SettingError
from adaptcl.inputs import Inputs
from adaptcl.run import FROM_PYTHON
from adaptcl.run_folder import read_delivered, read_settings


class Delivered(nn.Module):
    """A trained model that takes what it was trained on.

    uint8 images [N, C, H, W] are scaled and normalised as they were in training; anything else goes
    to the model as it is. `model` is the model itself and `inputs` says what it takes.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores for each class."""
        scores: Tensor = self.model(self.inputs.prepared(inputs))
        return scores


def load(
    folder: str | Path, *, model: nn.Module | None = None, worker: int | None = None
) -> Delivered:
    """The model of a finished run, in evaluation mode; with `worker`, that worker's sub-model.

    A sub-model is physically smaller and has the values of the delivered model. `model` is the
    model of a run that was started from Python, with whatever values; one that has a name is made
    anew. It is not changed.
    """
    path = Path(folder)
    settings = read_settings(path)
    state, inputs, sub_models = read_delivered(path)
    if model is not None:
        trained = copy.deepcopy(model)
    elif settings["model"] == FROM_PYTHON:
        raise SettingError(
            f"{path} was started from Python with its own model; give that: "
            "adaptcl.load(folder, model=...)."
        )
    else:
        trained = models.build(
            settings["model"], inputs.shape, len(inputs.classes), settings["seed"]
        )
    try:
        trained.load_state_dict(state)
    except RuntimeError as error:
        raise RunFolderError(f"{path} holds another model than this: {error}") from None
    return Delivered(trained if worker is None else sub_models.cut(trained, worker), inputs).eval()
