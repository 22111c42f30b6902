"""One run from beginning to end: from settings, a model and data to a result.

`simulated_session.py` and `network/session.py` check and put together the parts of a run while
nothing has been written yet, so that whatever is wrong is refused before a folder is made. The
strategy of both is made here. `run_session` trains, and `run_in_folder` makes or opens the folder
where it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptcl.config.config import FROM_PYTHON, Config
from adaptcl.custom import note_custom_code
from adaptcl.engines.loop import Loop
from adaptcl.engines.transport import Transport
from adaptcl.errors import DivergedError, SettingError
from adaptcl.events import (
    Event,
    Listener,
    Listeners,
    RoundFinished,
    RunFinished,
    RunStarted,
    Warned,
)
from adaptcl.records import RoundRecord, Summary, summarise
from adaptcl.runs.evaluator import (
    RunEvaluator,
    TestSetEvaluator,
    WorkerEvaluator,
    refuse_tests_at_the_server,
)
from adaptcl.runs.files.checkpoints import Checkpoints
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.models_so_far import BestModel, CurrentSubModels
from adaptcl.runs.files.run_files import is_run_folder, read_marks, read_summary
from adaptcl.runs.files.status_file import StatusFile
from adaptcl.runs.files.sub_models import Savings, SubModels
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.resumption import recognise, refuse_other_settings
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data, try_optimizer
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.training.devices import gpu_left_as_found
from adaptcl.training.objectives.evaluation import Score
from adaptcl.training.optimizers import OptimizerFactory, Schedule, find_optimizer, find_schedule
from adaptcl.units import State, UnitMap

Track = Callable[[Path, Config], AbstractContextManager[Sequence[Listener]]]
"""Makes the trackers of a run, given its folder and its settings."""


@dataclass(frozen=True)
class Session:
    """The parts of one run, checked; nothing is trained yet. Good for one run."""

    config: Config
    workload: Workload
    strategy: Strategy
    connect: Callable[[], Transport]
    """Builds the transport, when the run begins: on a GPU it takes memory."""
    warnings: tuple[str, ...] = ()
    worker_labels: tuple[tuple[int, ...], ...] = ()
    """Samples of each class by worker, where the server can know."""
    worker_samples: tuple[int, ...] = ()
    """How many training samples each worker has, where the server can know."""
    clock: str = ""  # what the clock of a simulation assumes


def checked_strategy(
    config: Config, workload: Workload, time_noise: float, *, is_steady: bool = False
) -> Strategy:
    """The strategy of a run; an error if it, the model and the data do not go together."""
    if workload.tested_by_workers:
        refuse_tests_at_the_server(config)
    config.stop_rule(workload.objective.main)  # refuses a target that this run cannot have
    check_model_and_data(workload, config.recipe.batch_size)
    try_optimizer(workload.model, config.recipe, *custom_optimizer_of(config, workload))
    if config.recipe.augmentation and workload.objective.targets == "classes":
        raise SettingError("augmentation moves images but not their targets; switch it off.")
    state = {k: v.detach().clone() for k, v in workload.model.state_dict().items()}
    job = job_of(config, workload.units, state, time_noise, is_steady=is_steady)
    return strategy_class(config.job.strategy)(job, config.strategy)


def job_of(
    config: Config, units: UnitMap, state: State, time_noise: float, *, is_steady: bool
) -> Job:
    """What the strategy of a run starts from."""
    return Job(
        units=units,
        state=state,
        workers=config.job.workers,
        rounds=config.job.rounds,
        recipe=config.recipe,
        seed=config.job.seed,
        time_noise=time_noise,
        is_steady=is_steady,
    )


def custom_optimizer_of(
    config: Config, workload: Workload
) -> tuple[OptimizerFactory | None, Schedule | None]:
    """The user's optimizer and schedule, if there are any."""
    return (
        workload.custom_optimizer or find_optimizer(config.recipe.optimizer),
        workload.schedule or find_schedule(config.recipe.schedule),
    )


@gpu_left_as_found()
def run_session(
    session: Session,
    folder: RunFolder | None = None,
    listeners: Sequence[Listener] = (),
    evaluator: RunEvaluator | None = None,
) -> FinishedRun:
    """Run to the end, from the beginning or from where the folder was left; closes the folder."""
    config, workload, strategy = session.config, session.workload, session.strategy
    job, inputs, measure = config.job, workload.described_inputs, workload.objective.main
    with ExitStack() as at_end:
        status = None
        if folder:
            at_end.enter_context(closing(folder))
            status = at_end.enter_context(closing(StatusFile(folder.path)))
        at_end.enter_context(note_custom_code(config.named_methods))
        evaluator = evaluator or _evaluator(config, workload)
        stop_rule = config.stop_rule(measure)
        checkpoints = Checkpoints(job, strategy, folder, evaluator, stop_rule)
        checkpoint, records = None, list[RoundRecord]()
        if folder:
            recognise(folder, config, workload)
            folder.save_inputs(inputs)  # so that the model of a checkpoint can be loaded
            checkpoint, records = folder.left_off(torch.device(job.device))
            folder.note_provenance(len(records) + 1, job.device)
        if checkpoint:
            checkpoints.restore(checkpoint, records)

        def keep_record(event: Event) -> None:
            if isinstance(event, RoundFinished):
                records.append(event.record)

        needed: list[Listener] = [keep_record]
        if folder and status:
            best = BestModel(folder, evaluator, strategy, records, measure)
            widths = CurrentSubModels(folder, workload.units, strategy)
            needed += [folder.record, status, best, widths]
        tell_all = Listeners(needed, listeners, stop_rule.ask)

        def delivered_now() -> nn.Module:
            return workload.model_with(evaluator.delivered(strategy))

        def tell(event: Event) -> None:
            if isinstance(event, RoundFinished):
                event = replace(event, model=delivered_now)
            tell_all(event)

        tell(_started(session, len(records)))
        for sentence in session.warnings:
            tell(Warned(sentence))
        last_test = evaluator.last_test if isinstance(evaluator, WorkerEvaluator) else None
        transport = session.connect()
        loop = Loop(strategy, transport, job.workers, evaluator, [tell], stop_rule, last_test)
        try:
            loop.run(checkpoints.save, checkpoint and checkpoint["loop"])
        except DivergedError as error:
            raise _with_last_good_model(error, session, evaluator, folder, len(records)) from None

        final = evaluator.delivered(strategy)
        summary = replace(
            _summary(session, evaluator, records, final, checkpoints.wall_time()),
            stopped_by=None if strategy.finished else stop_rule.stopped_by,
        )
        sub_models = SubModels.of(workload.units, strategy.sub_models())
        sub_models = evaluator.with_statistics(sub_models, final)
        if folder:
            keep = checkpoints.extendable and summary.stopped_by is None
            folder.finish(summary, final, inputs, sub_models, keep_checkpoint=keep)
        tell(RunFinished(summary))
        return FinishedRun(
            summary=summary,
            rounds=tuple(records),
            model=workload.model_with(final),
            sub_models=sub_models,
            folder=folder.path if folder else None,
            inputs=inputs,
            objective=workload.objective,
            settings=config.values(),
        )


def _evaluator(config: Config, workload: Workload) -> RunEvaluator:
    """Who tests: the workers, or the server."""
    kind = WorkerEvaluator if workload.tested_by_workers else TestSetEvaluator
    return kind(config, workload)


def _started(session: Session, rounds_done: int) -> RunStarted:
    job, workload = session.config.job, session.workload
    return RunStarted(
        strategy=job.strategy,
        model=job.model if job.model != FROM_PYTHON else type(workload.model).__name__,
        data=job.data,
        workers=job.workers,
        rounds=session.strategy.rounds,
        rounds_done=rounds_done,
        metric=workload.objective.main,
        clock=session.clock,
    )


def _with_last_good_model(
    error: DivergedError,
    session: Session,
    evaluator: RunEvaluator,
    folder: RunFolder | None,
    rounds: int,
) -> DivergedError:
    """The error with the model before the training that diverged, which the folder keeps."""
    workload, final = session.workload, evaluator.delivered(session.strategy)
    sentence = str(error)
    if folder:
        sub_models = SubModels.of(workload.units, session.strategy.sub_models())
        folder.keep_last_good(final, workload.described_inputs, sub_models)
        again = f"`adaptcl resume {folder.path} --learning-rate X`"
        if FROM_PYTHON in session.config.values().values():
            again = "adaptcl.run(..., resume=True, learning_rate=X)"
        sentence = (
            f"{sentence} The model after {rounds} round{'' if rounds == 1 else 's'} is kept in "
            f"{folder.path}; {again} goes on from there."
        )
    found = DivergedError(sentence)
    found.model = workload.model_with(final)
    return found


def _summary(
    session: Session,
    evaluator: RunEvaluator,
    records: Sequence[RoundRecord],
    final: State,
    wall_time: float,
) -> Summary:
    tested = evaluator.final_score(final)
    delivered = None
    if records[-1].metric is None or tested.by_worker:
        delivered = records[-1].tested(tested.loss, tested.main, tested.metrics)
    job = session.config.job
    return summarise(
        records,
        session.workload.objective.main,
        delivered,
        strategy=job.strategy,
        wall_time_s=wall_time,
        **Savings.of(session.workload.units, session.strategy.sub_models())._asdict(),
        accuracy_by_class=tested.by_class,
        **_by_worker(session, tested),
        seed=job.seed,
        workers=job.workers,
        model=job.model,
        data=job.data,
    )


def _by_worker(session: Session, tested: Score) -> dict[str, Any]:
    """The figures of a summary that each worker has."""
    labels = session.worker_labels
    classes = max(map(len, labels), default=0)
    has = {
        "samples_by_worker": session.worker_samples,
        "labels_by_worker": tuple((*each, *[0] * (classes - len(each))) for each in labels),
    }
    if not session.workload.tested_by_workers:
        return has | {"accuracy_by_worker": tuple(tested.on(each) for each in labels)}
    tests = [tested.by_worker.get(each) for each in range(session.config.job.workers)]
    found = tuple({} if test is None else test.metrics for test in tests)
    accuracies = tuple(each.get("accuracy") for each in found)
    is_known = any(each is not None for each in accuracies)
    return has | {"worker_metrics": found, "accuracy_by_worker": accuracies if is_known else ()}


# In a folder -------------------------------------------------------------------------------------


def is_finished(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a run is finished and has all the rounds of these settings.

    It is an error if a finished run was begun with other settings.
    """
    if read_summary(path) is None:
        return False
    begun = read_marks(path)
    if begun is None:
        return True
    refuse_other_settings(begun["settings"], json.loads(json.dumps(dict(settings))))
    return bool(begun["settings"]["rounds"] >= settings["rounds"])


def run_in_folder(
    session: Session, path: Path, listeners: Sequence[Listener], track: Track, *, resume: bool
) -> FinishedRun:
    """Run to the end in a new folder, or with `resume` from where a run in it stopped."""
    with track(path, session.config) as trackers:
        goes_on = resume and is_run_folder(path)
        folder = (
            RunFolder.open(path) if goes_on else RunFolder.create(path, session.config.to_toml())
        )
        return run_session(session, folder, [*listeners, *trackers])
