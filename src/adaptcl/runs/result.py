"""The result of a run: the trained model, its figures, and every worker's sub-model."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import models
from adaptcl.data import as_samples
from adaptcl.data.description import SampleForm
from adaptcl.data.samples import renumbered
from adaptcl.errors import AdaptCLError, RunFolderError, SettingError, warn_user
from adaptcl.events import Event, Listener, RoundFinished, RunStarted
from adaptcl.quantities import duration
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.delivered import Delivered
from adaptcl.runs.files.run_files import (
    DIVERGED,
    SUMMARY,
    read_best,
    read_delivered,
    read_settings,
    read_sub_models,
    read_unfinished,
)
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.strategies.dc_asgd import planned_rounds
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.units.user_model import refuse_no_module, uncompiled


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """What a run comes to. `adaptcl.Result` can also show itself."""

    summary: Summary
    rounds: tuple[RoundRecord, ...]
    model: nn.Module
    """The trained model in evaluation mode: the global model, or its mean over some rounds. For
    uint8 images it takes floats between 0 and 1, normalised if training normalised them."""
    sub_models: SubModels
    folder: Path | None
    inputs: SampleForm
    """What the model was trained on."""
    objective: Objective = CLASSIFICATION
    """What it was trained for."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the run by name."""

    @property
    def delivered(self) -> Delivered:
        """The same model wrapped to take uint8 images, as from `adaptcl.load`."""
        return Delivered(self.model, self.inputs).eval()

    @property
    def worker_metrics(self) -> tuple[Mapping[str, float | None], ...]:
        """The metrics of the model by worker, each on what it holds back, where workers test."""
        return self.summary.worker_metrics

    def sub_model(self, worker: int) -> nn.Module:
        """A worker's sub-model: a smaller module with the values of the whole model."""
        found = self.sub_models.cut(self.model, worker)
        warn_without_statistics(self.sub_models, [worker], self.settings)
        return found

    def sub_model_accuracies(self, test: Any) -> tuple[float, ...]:
        """The accuracy, or another main metric, of each sub-model on a data set in any form that
        `adaptcl.run` takes."""
        device = next(self.model.parameters()).device
        samples = renumbered(as_samples(test, self.objective.targets), self.inputs.classes)
        if samples.kind == "uint8":
            samples = replace(samples, mean=self.inputs.mean, std=self.inputs.std)
        workers = range(len(self.sub_models.of_worker))
        warn_without_statistics(self.sub_models, workers, self.settings)
        return self.sub_models.tested(self.model, samples.to(device), self.objective)

    def __repr__(self) -> str:
        # One line: all rounds of all workers would fill screens.
        found, measure = self.summary, self.summary.measure
        return (
            f"<Result of {found.strategy}: {measure.label} {measure.write(found.main_value, 2)} "
            f"after {found.rounds} round{'s' * (found.rounds != 1)} and "
            f"{duration(found.virtual_time_s)} of virtual time>"
        )


def warn_without_statistics(
    sub_models: SubModels, workers: Iterable[int], settings: Mapping[str, Any]
) -> None:
    """Warn if sub-models have the batch-norm statistics that were measured on the whole model."""
    asked = settings.get("fresh_statistics") or settings.get("static_batch_norm")
    if asked and any(map(sub_models.misses_statistics, workers)):
        warn_user(
            "If the model has batch norm, its statistics were not measured on this part of it and "
            "may not fit it; put the part in training mode and let it see some training samples."
        )


@dataclass(frozen=True)
class FailedRun:
    """One run of several that failed."""

    strategy: str
    seed: int
    round: int
    """The round in which it failed; 0 if it did not begin."""
    folder: Path | None
    error: Exception

    def __str__(self) -> str:
        """A sentence with all that a user needs to find and repeat it."""
        when = f"in round {self.round}" if self.round else "before its first round"
        where = f" ({self.folder})" if self.folder is not None else ""
        return f"{self.strategy} with seed {self.seed} failed {when}{where}: {self.reason}"

    @property
    def reason(self) -> str:
        return reason_of(self.error)


def reason_of(error: Exception) -> str:
    is_ours = isinstance(error, AdaptCLError)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def show_in_full(error: Exception) -> None:
    """Print where an error that is not ours was raised, most likely in a custom model or data."""
    if not isinstance(error, AdaptCLError):
        traceback.print_exception(error)


@contextmanager
def noting_failure(
    strategy: str, seed: int, folder: Path | None, failed: list[FailedRun], *, alone: bool = False
) -> Iterator[Listener]:
    """Note the failure of a run that listens with what this yields, and go on with the others.

    The error of a run that is alone is just raised.
    """
    reached, last = 0, 0

    def count(event: Event) -> None:
        nonlocal reached, last
        if isinstance(event, RunStarted):
            reached, last = event.rounds_done + 1, event.rounds
        elif isinstance(event, RoundFinished):
            reached = min(event.record.round + 1, last)

    try:
        yield count
    except Exception as error:
        # Nobody reads the output any more, or the user wants warnings to be errors.
        if alone or isinstance(error, BrokenPipeError | Warning):
            raise
        show_in_full(error)
        failed.append(FailedRun(strategy, seed, reached, folder, error))


def load(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    worker: int | None = None,
    best: bool = False,
) -> Delivered:
    """Load the model of a run in evaluation mode; with `worker`, that worker's sub-model.

    With `best` this is the model that had the best test, not the one after the last round. Of a run
    that is unfinished it is the model of the last checkpoint, and a warning says so.

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
    if (path / SUMMARY).exists() or (path / DIVERGED).exists():
        state, inputs = read_delivered(path)
    else:
        state, inputs, rounds = read_unfinished(path)
        which = "its best model so far" if best else "its model"
        which = which if worker is None else f"worker {worker}'s sub-model"
        warn_user(
            f"{path} is not finished; this is {which}, after {rounds} of "
            f"{planned_rounds(settings)} rounds."
        )
    if best:
        state = read_best(path)
    if model is not None:
        refuse_no_module(model)
        trained = copy.deepcopy(uncompiled(model))
    elif settings["model"] not in models.MODELS:
        raise SettingError(
            f"{path} was trained with a custom model, {settings['model']!r:.100}; give it: "
            "adaptcl.load(folder, model=...)."
        )
    else:
        trained = models.build(settings["model"], inputs.shape, inputs.width, settings["seed"])
    try:
        trained.load_state_dict(state)
    except RuntimeError as error:
        raise RunFolderError(f"{path} holds another model than this: {error}") from None
    if worker is not None:
        sub_models = read_sub_models(path)
        trained = sub_models.cut(trained, worker)
        warn_without_statistics(sub_models, [worker], settings)
    return Delivered(trained, inputs).eval()
