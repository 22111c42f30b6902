"""`adaptcl worker`: model and data for a run, by the owner's flags and the server's wishes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptcl import models
from adaptcl.codecs import CODECS, codec_class, codecs
from adaptcl.codecs.codec import Codecs
from adaptcl.config.job import JobSettings
from adaptcl.engines.network.agreement import LocalStatistics
from adaptcl.engines.network.invitation import (
    Invitation,
    MismatchError,
    Question,
    objective_in_words,
    refuse_other_model,
    refuse_other_objective,
)
from adaptcl.engines.network.keys import expiry_warning
from adaptcl.engines.network.trial import refuse_other_outputs
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.engines.network.worker.worker_process import ServerConnection, WorkerProcess
from adaptcl.errors import SettingError
from adaptcl.pruning import ORDERS, custom_worker_orders, server_order
from adaptcl.runs.workload import Workload, deal, hold_back, named_objective
from adaptcl.runs.workload_check import check_lookup_tables, check_targets
from adaptcl.settings import build
from adaptcl.training.devices import find_device, make_workers
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective, find_objective
from adaptcl.training.optimizers import find_optimizer, find_schedule
from adaptcl.training.task import OPTIMIZERS
from adaptcl.training.worker import Worker
from adaptcl.units.as_json import units_from_json
from adaptcl.units.tracing.numbering import without_units


@dataclass(frozen=True)
class OwnerChoices:
    """What the owner of a machine decides, whatever a server asks."""

    data: str
    data_dir: str
    model: str
    """A custom model that the server may name; models that come with AdaptCL need no permission."""
    device: str
    dealt: bool
    """Whether to take only this worker's share of the data, for trials in which all machines have
    the same data set."""
    codec: str = ""  # this and the next three are permissions, as for the model
    pruning: str = ""
    optimizer: str = ""
    schedule: str = ""
    objective: str = CLASSIFICATION.name
    """What the targets of the data are for; it must be the server's."""
    test_part: bool = False
    """Whether to test on the test part of the data, and to hold nothing back of the other."""


def work(
    owner: OwnerChoices, connection: ServerConnection, memory: Path, say: Callable[[str], None]
) -> None:
    """Work for a server until it says that the job is over."""
    refuse_unusable(owner, memory)
    folder = Path(owner.data_dir) if owner.data_dir else None
    targets = find_objective(owner.objective).targets
    data = LocalData.named(owner.data, folder, test_part=owner.test_part, targets=targets)

    def prepared(call: Invitation) -> tuple[Worker, Codecs]:
        if call.settings.get("holdout") and data.has_unused_tests and not owner.dealt:
            say("the test part of the data is not used; --test-part tests on it")
        return prepare(owner, data, call)

    if warning := expiry_warning(connection.keys.authority):
        say(warning)

    def described(question: Question) -> LocalStatistics:
        return describe(owner, data, question)

    WorkerProcess(connection, prepared, described, memory, say).run()


def refuse_unusable(owner: OwnerChoices, memory: Path) -> None:
    """Refuse what the owner has to fix, before any server hears of this worker."""
    find_device("--device", owner.device)
    if owner.model:
        models.find(owner.model)
    if owner.codec:
        codec_class(owner.codec)
    if owner.pruning:
        server_order(owner.pruning)
    find_optimizer(owner.optimizer)
    find_schedule(owner.schedule)
    try:
        memory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=memory):
            pass
    except OSError as error:
        raise SettingError(
            f"--memory is {str(memory)!r}, but nothing can be written there: {error.strerror}."
        ) from None


def describe(owner: OwnerChoices, data: LocalData, question: Question) -> LocalStatistics:
    """What to tell of the data, once all is checked that does not need those of other workers."""
    for asked in question.settings:
        _agreed_job(owner, asked, question.objective)
    return data.statistics()


def prepare(owner: OwnerChoices, data: LocalData, invitation: Invitation) -> tuple[Worker, Codecs]:
    """The worker of a run and its codecs, checked by what the owner allows and the server has."""
    asked = invitation.settings
    job, objective = _agreed_job(owner, asked, invitation.objective)
    wanted = invitation.inputs
    samples = data.fitted(wanted)
    if owner.dealt:
        samples = deal(samples, job)[invitation.worker]
    tests = None
    if job.holdout:
        tests = data.fitted_tests(wanted)
        if tests is None:
            samples, tests = hold_back(samples, job, invitation.worker)
        tests = tests.to(owner.device)
    samples = samples.to(owner.device)
    model = models.build(job.model, wanted.shape, wanted.width, job.seed).to(owner.device)
    parts = [samples] if tests is None else [samples, tests]
    workload = Workload(model, parts, samples, job.fixed, objective=objective)
    check_lookup_tables(workload)
    check_targets(workload)
    refuse_other_model(model, without_units(model), invitation.fingerprint, invitation.outline)
    refuse_other_outputs(model, wanted, invitation.trial)
    (worker,) = make_workers(
        model,
        units_from_json(invitation.units, model),
        [samples],
        workload.example(),
        job.seed,
        job.precision,
        first=invitation.worker,
        objective=objective,
        custom_optimizer=find_optimizer(asked.get("optimizer", "")),
        schedule=find_schedule(asked.get("schedule", "")),
        custom_orders=custom_worker_orders(owner.pruning),
        held_back=[] if tests is None else [tests],
        test_every=job.evaluate_every,
    )
    return worker, codecs(job.codec, job.codec_down, asked)


def _agreed_job(
    owner: OwnerChoices, asked: Mapping[str, Any], objective: str
) -> tuple[JobSettings, Objective]:
    """The server's settings of a run, if the owner allows what they name."""
    _refuse_foreign(asked, owner)
    job = build(JobSettings, {**asked, "objective": owner.objective})
    mine = named_objective(job)
    refuse_other_objective(objective_in_words(job.objective, mine), objective)
    return job, mine


_USES: Mapping[str, tuple[str, Collection[str]]] = {
    "model": ("trains the model", models.MODELS),
    "codec": ("uses the codec", CODECS),
    "pruning": ("prunes in the order", ORDERS),
    "optimizer": ("trains with the optimizer", OPTIMIZERS),
    "schedule": ("trains by the schedule", ("",)),
}
"""What a server does with what a setting names, and which names come with AdaptCL."""


def _refuse_foreign(settings: Mapping[str, object], owner: OwnerChoices) -> None:
    """Refuse to import code that only the server names."""
    for setting, (uses, shipped) in _USES.items():
        named = getattr(owner, setting)
        asked = settings.get(setting, named)
        if asked == named or (isinstance(asked, str) and asked in shipped):
            continue
        allowed = f"only {named!r} is allowed there" if named else "none is allowed there"
        raise MismatchError(
            f"The server {uses} {asked!r:.200}; a worker imports only what its owner names, "
            f"and {allowed}; start the worker with --{setting} {asked!r:.200} if that is meant."
        )
