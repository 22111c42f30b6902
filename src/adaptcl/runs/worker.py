"""`adaptcl worker`: what a worker brings into a run, by its owner's flags and the server's call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from adaptcl import models
from adaptcl.codecs import CODECS, codec, codec_class
from adaptcl.config import JobSettings
from adaptcl.engines.network.invitation import MismatchError, refuse_other_model
from adaptcl.engines.network.messages import Invitation
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.engines.network.worker.worker_process import (
    Belongings,
    ServerConnection,
    WorkerProcess,
)
from adaptcl.errors import SettingError
from adaptcl.pruning import ORDERS, custom_worker_orders, server_order
from adaptcl.runs.workload import Workload, deal
from adaptcl.runs.workload_check import check_lookup_tables
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
    codec: str = ""
    pruning: str = ""
    """Empty, as with the model, where those that come with AdaptCL will do."""


def work(
    owned: Owned, connection: ServerConnection, memory: Path, say: Callable[[str], None]
) -> None:
    """Work for a server until it says that all is over."""
    refuse_unusable(owned, memory)
    data = LocalData.named(owned.data, Path(owned.data_dir) if owned.data_dir else None)
    WorkerProcess(connection, lambda call: prepare(owned, data, call), memory, say).run()


def refuse_unusable(owned: Owned, memory: Path) -> None:
    """An error for what its owner has to put right, before any server hears of this worker."""
    try:
        torch.empty(0, device=torch.device(owned.device))
    except (RuntimeError, AssertionError):
        raise SettingError(
            f"--device is {owned.device!r}, but PyTorch has no such device on this machine."
        ) from None
    if owned.model:
        models.find(owned.model)
    if owned.codec:
        codec_class(owned.codec)
    if owned.pruning:
        server_order(owned.pruning)
    try:
        memory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=memory):
            pass
    except OSError as error:
        raise SettingError(
            f"--memory is {str(memory)!r}, but nothing can be written there: {error.strerror}."
        ) from None


def prepare(owned: Owned, data: LocalData, invitation: Invitation) -> Belongings:
    """Model and data for one run, checked against what the owner allows and the server has."""
    told = invitation.settings
    _refuse_foreign("model", told.get("model"), models.MODELS, owned.model)
    _refuse_foreign("codec", told.get("codec", "plain"), CODECS, owned.codec)
    _refuse_foreign("pruning", told.get("pruning", "index"), ORDERS, owned.pruning)
    job = build(JobSettings, told)
    wanted = invitation.inputs
    samples = data.fitted(wanted)
    if owned.dealt:
        samples = deal(samples, job)[invitation.worker]
    samples = samples.to(owned.device)
    model = models.build(job.model, wanted.shape, len(wanted.classes), job.seed).to(owned.device)
    own = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    workload = Workload(model, [samples], samples, (*own, *job.fixed))
    check_lookup_tables(workload)
    units = trace(model, workload.example(), workload.fixed)
    refuse_other_model(model, units, invitation.fingerprint, invitation.outline)
    return Belongings(
        model,
        units,
        samples,
        codec(job.codec, told),
        job.seed,
        job.precision,
        custom_worker_orders(owned.pruning),
    )


_DOES = {
    "model": "trains the model",
    "codec": "uses the codec",
    "pruning": "prunes in the order",
}


def _refuse_foreign(setting: str, asked: object, ours: Collection[str], own: str) -> None:
    """An error if the server names code to be imported that the owner has not named."""
    if asked == own or (isinstance(asked, str) and asked in ours):
        return
    allowed = f"only {own!r} is allowed there" if own else "none is allowed there"
    raise MismatchError(
        f"The server {_DOES[setting]} {asked!r:.200}; a worker imports only what its owner names, "
        f"and {allowed}; start the worker with --{setting} {asked!r:.200} if that is meant."
    )
