"""The result of a run: the trained model, its figures, and every worker's sub-model."""

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
from adaptcl.runs.folder_reader import read_best, read_delivered, read_settings
from adaptcl.runs.sub_models import SubModels
from adaptcl.units.trace import uncompiled


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run."""

    summary: Summary
    rounds: tuple[RoundRecord, ...]
    model: nn.Module
    """The trained model in evaluation mode: the global model, or its mean over some rounds. For
    uint8 images it takes floats between 0 and 1, normalised if training normalised them."""
    sub_models: SubModels
    folder: Path | None
    inputs: Inputs
    """What the model was trained on."""

    @property
    def delivered(self) -> Delivered:
        """The same model wrapped to take uint8 images, as from `adaptcl.load`."""
        return Delivered(self.model, self.inputs).eval()

    def sub_model(self, worker: int) -> nn.Module:
        """A worker's sub-model: a smaller module with the values of the whole model."""
        return self.sub_models.cut(self.model, worker)

    def sub_model_accuracies(self, test: Any) -> tuple[float, ...]:
        """The accuracy of each sub-model on a data set in any form that `adaptcl.run` takes."""
        device = next(self.model.parameters()).device
        return self.sub_models.accuracies(self.model, as_samples(test).to(device))

    def __repr__(self) -> str:
        # One line: all rounds of all workers would fill screens.
        found = self.summary
        return (
            f"<Result of {found.strategy}: accuracy {100 * found.accuracy:.2f} % after "
            f"{found.rounds} rounds and {found.virtual_time_s:.1f} virtual seconds>"
        )


def load(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    worker: int | None = None,
    best: bool = False,
) -> Delivered:
    """Load the model of a finished run in evaluation mode; with `worker`, that worker's sub-model.

    With `best` this is the model that had the best test, not the one after the last round.

    A model that was trained on uint8 images takes them as they are. Floats must be scaled and
    normalised as in training (torchvision's ToTensor only scales). A sub-model is physically
    smaller and has the values of the delivered model.

    Give `model` if the run trained a custom model; its values do not matter and it is not changed.
    Nothing that a folder names is imported, because the folder may come from somebody else.
    """
    path = Path(folder)
    settings = read_settings(path)
    if best and worker is not None:
        raise SettingError(
            "best and worker are both given, but sub-models are kept only for the last model; "
            "leave one of them out."
        )
    state, inputs, sub_models = read_delivered(path)
    if best:
        state = read_best(path)
    if model is not None:
        trained = copy.deepcopy(uncompiled(model))
    elif settings["model"] not in models.MODELS:
        raise SettingError(
            f"{path} was trained with a custom model, {settings['model']!r:.100}; give it: "
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
