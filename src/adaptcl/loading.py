"""Using what a finished run left in its folder: the whole model, or one worker's sub-model."""

from __future__ import annotations

import copy
from pathlib import Path

from torch import nn

from adaptcl import models
from adaptcl.compiled import uncompiled
from adaptcl.delivered import Delivered
from adaptcl.errors import RunFolderError, SettingError
from adaptcl.run_folder import read_delivered, read_settings


def load(
    folder: str | Path, *, model: nn.Module | None = None, worker: int | None = None
) -> Delivered:
    """The model of a finished run, in evaluation mode; with `worker`, that worker's sub-model.

    It takes uint8 images as they are, if it was trained on such; floats must be scaled and
    normalised as training did (ToTensor of torchvision only scales). A sub-model is physically
    smaller and has the values of the delivered model. `model` is the model of a run that did not
    train one of AdaptCL's, with whatever values; it is not changed. What a folder names is never
    imported: it may come from somebody else.
    """
    path = Path(folder)
    settings = read_settings(path)
    state, inputs, sub_models = read_delivered(path)
    if model is not None:
        trained = copy.deepcopy(uncompiled(model))
    elif settings["model"] not in models.MODELS:
        raise SettingError(
            f"{path} was trained with a model of its own, {settings['model']!r:.100}; give that: "
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
