"""What a run gives back: the trained model, what was measured, and every worker's sub-model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl.data import as_samples
from adaptcl.delivered import Delivered
from adaptcl.inputs import Inputs
from adaptcl.records import RoundRecord, Summary
from adaptcl.sub_models import SubModels
from adaptcl.training.evaluate import sub_model_accuracies


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
        return sub_model_accuracies(self.model, self.sub_models, as_samples(test).to(device))

    def __repr__(self) -> str:
        """A line; all rounds of all workers would fill screens."""
        told = self.summary
        return (
            f"<Result of {told.strategy}: accuracy {100 * told.accuracy:.2f} % after {told.rounds} "
            f"rounds and {told.virtual_time_s:.1f} virtual seconds>"
        )
