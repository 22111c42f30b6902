"""`adaptcl worker`: what a worker brings into a run, by its owner's flags and the server's call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from adaptcl import models
from adaptcl.codecs import codec
from adaptcl.config import JobSettings
from adaptcl.data import DataSet, load
from adaptcl.engines.flower.messages import Invitation
from adaptcl.engines.flower.trainer import Belongings, Connection, Trainer
from adaptcl.errors import AdaptCLError
from adaptcl.materials import deal
from adaptcl.settings import build
from adaptcl.units import trace


@dataclass(frozen=True)
class Owned:
    """What the owner of a machine decides, whatever a server asks."""

    data: str
    data_dir: str
    model: str
    """Empty where any model that comes with AdaptCL will do."""
    device: str
    dealt: bool
    """Whether to take only this worker's part of the data, for trials in which all machines
    have the same data set."""


def work(owned: Owned, connection: Connection, memory: Path, say: Callable[[str], None]) -> None:
    """Work for a server until it says that all is over."""
    data = load(owned.data, Path(owned.data_dir) if owned.data_dir else None)
    Trainer(connection, lambda call: prepare(owned, data, call), memory, say).run()


def prepare(owned: Owned, data: DataSet, invitation: Invitation) -> Belongings:
    """Model and data for one run, checked against what the owner allows."""
    job = build(JobSettings, {**invitation.settings, "model": _model(owned, invitation)})
    samples = deal(data.train, job)[invitation.worker] if owned.dealt else data.train
    samples = samples.to(owned.device)
    model = models.build(job.model, samples.shape, len(data.classes), job.seed).to(owned.device)
    own = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    example, _ = data.test.batch(torch.arange(2) % len(data.test))
    return Belongings(
        model,
        trace(model, example.to(owned.device), (*own, *job.fixed)),
        samples,
        codec(job.codec, invitation.settings),
        job.seed,
        job.precision,
    )


def _model(owned: Owned, invitation: Invitation) -> str:
    """The model's name: the server may name one of ours, but never code to be imported."""
    asked = str(invitation.settings.get("model"))
    if owned.model:
        return owned.model
    if asked not in models.MODELS:
        raise AdaptCLError(
            f"The server trains the model {asked!r}; a worker imports only what its owner names, "
            f"so start it with --model {asked} if that is meant."
        )
    return asked
