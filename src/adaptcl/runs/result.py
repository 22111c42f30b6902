"""What a run gives back: the trained model, what was measured, and every worker's sub-model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import models
from adaptcl.data import as_samples
from adaptcl.data.samples import Inputs
from adaptcl.errors import RunFolderError, SettingError
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.delivered import Delivered
from adaptcl.runs.folder_reader import read_delivered, read_settings
from adaptcl.runs.sub_models import SubModels
from adaptcl.units.trace import uncompiled


@dataclass(frozen=True, repr=False)
class Result:
    """What a run gives back."""

    summary: Summary
    rounds: tuple[RoundRecord, ...]
    model: nn.Module
    """The model that was trained, ready to be used (in evaluation mode): the global one, or its
    mean over some rounds. It takes what it took in training: of uint8 images floats between 0 and
    1, normalised if they were."""
    sub_models: SubModels
    folder: Path | None
    inputs: Inputs
    """What it was trained on."""

    @property
    def delivered(self) -> Delivered:
        """The same model, which takes uint8 images as they are: what `adaptcl.load` gives."""
        return Delivered(self.model, self.inputs).eval()

    def sub_model(self, worker: int) -> nn.Module:
        """A worker's part of the model: a smaller module with its values."""
        return self.sub_models.cut(self.model, worker)

    def sub_model_accuracies(self, test: Any) -> tuple[float, ...]:
        """Of each worker's sub-model, on a data set in any form that `adaptcl.run` takes."""
        device = next(self.model.parameters()).device
        return self.sub_models.accuracies(self.model, as_samples(test).to(device))

    def __repr__(self) -> str:
        """A line; all rounds of all workers would fill screens."""
        told = self.summary
        return (
            f"<Result of {told.strategy}: accuracy {100 * told.accuracy:.2f} % after {told.rounds} "
            f"rounds and {told.virtual_time_s:.1f} virtual seconds>"
        )


# Using what a finished run left in its folder: the whole model, or one worker's sub-model.


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
