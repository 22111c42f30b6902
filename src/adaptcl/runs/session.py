"""One run from beginning to end: from settings, a model and data to a result.

`simulated_session` checks and puts together the parts of a run while nothing has been written yet,
so that whatever is wrong is refused before a folder is made. `run_session` trains. A server puts
together the same parts around a network (`runs/server.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from adaptcl.codecs.codec import Codecs
from adaptcl.config import Config
from adaptcl.config.config import FROM_PYTHON
from adaptcl.custom import note_custom_code
from adaptcl.data import missing_classes
from adaptcl.engines.clock_summary import describe_clock, lopsided, whole_updates
from adaptcl.engines.environment import Environment
from adaptcl.engines.loop import Loop, Transport
from adaptcl.engines.simulation import LocalWorkers, Simulation
from adaptcl.engines.stop_rule import Listeners, StopRule
from adaptcl.errors import DivergedError, SettingError
from adaptcl.events import Event, Listener, RoundFinished, RunFinished, RunStarted, Warned
from adaptcl.pruning import WorkerOrder, custom_worker_orders
from adaptcl.records import RoundRecord, Summary, summarise
from adaptcl.runs.evaluator import (
    RunEvaluator,
    TestSetEvaluator,
    WorkerEvaluator,
    refuse_tests_at_the_server,
)
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.result import FinishedRun
from adaptcl.runs.resumption import can_be_extended, recognise
from adaptcl.runs.status_file import StatusFile
from adaptcl.runs.sub_models import Savings, SubModels
from adaptcl.runs.training_profile import measured_profile
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import check_model_and_data
from adaptcl.storage import Tree
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.training.devices import gpu_left_as_found, side_by_side_on_a_gpu, trainers
from adaptcl.training.evaluation import Score
from adaptcl.training.metrics import Measure
from adaptcl.training.optimizers import OptimizerFactory, find_optimizer, find_schedule
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.task import Schedule
from adaptcl.training.trial import try_optimizer
from adaptcl.training.worker import Worker
from adaptcl.units import State, flops


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
    clock: str = ""
    """What the clock of a simulation assumes."""


def simulated_session(config: Config, workload: Workload) -> Session:
    """Put together a simulated run; an error if anything about it cannot work.

    If the settings ask for a measured training profile, the session's have it instead.
    """
    with note_custom_code(config.named_methods):
        noise, is_steady = config.environment.time_noise, config.environment.is_steady
        strategy = checked_strategy(config, workload, noise, is_steady=is_steady)
        codecs = config.codecs
        custom_orders = custom_worker_orders(config.pruning)
        profile = measured_profile(config, workload)
        config = profile.of(config) if profile else config
        environment = Environment(
            config.environment,
            workload.units,
            config.job.workers,
            config.recipe.epochs,
            config.job.seed,
            [len(part) for part in workload.worker_samples],
        )
    updates = whole_updates(environment, workload.units, codecs)
    warnings = (
        missing_classes(workload.worker_samples, workload.test, workload.classes),
        environment.ignores_samples(),
        lopsided(updates),
    )
    return Session(
        config,
        workload,
        strategy,
        lambda: _simulation(config, workload, environment, codecs, custom_orders),
        tuple(sentence for sentence in warnings if sentence),
        tuple(
            tuple(torch.bincount(part.labels).tolist())
            for part in workload.worker_samples
            if part.has_labels
        ),
        describe_clock(environment, updates, measured=profile is not None),
    )


def checked_strategy(
    config: Config, workload: Workload, time_noise: float, *, is_steady: bool = False
) -> Strategy:
    """The strategy of a run; an error if it, the model and the data do not go together."""
    if workload.tested_by_workers:
        refuse_tests_at_the_server(config)
    check_model_and_data(workload, config.recipe.batch_size)
    try_optimizer(workload.model, config.recipe, *_own_optimizer(config, workload))
    units = workload.units
    if config.recipe.augmentation and workload.objective.targets == "classes":
        raise SettingError("augmentation moves images but not their targets; switch it off.")
    state = {k: v.detach().clone() for k, v in workload.model.state_dict().items()}
    job = config.job
    settings = (job.workers, job.rounds, config.recipe, job.seed, time_noise, is_steady)
    return strategy_class(job.strategy)(Job(units, state, *settings), config.strategy)


@gpu_left_as_found()
def run_session(
    session: Session,
    folder: RunFolder | None = None,
    listeners: Sequence[Listener] = (),
    evaluator: RunEvaluator | None = None,
) -> FinishedRun:
    """Run to the end, from the beginning or from where the folder was left; closes the folder."""
    try:
        with note_custom_code(session.config.named_methods):
            return _run(session, folder, listeners, evaluator)
    finally:
        if folder is not None:
            folder.close()


def _run(
    session: Session,
    folder: RunFolder | None,
    listeners: Sequence[Listener],
    evaluator: RunEvaluator | None,
) -> FinishedRun:
    config, workload, strategy = session.config, session.workload, session.strategy
    job = config.job
    checkpoint, records = None, list[RoundRecord]()
    inputs = workload.described_inputs
    if folder:
        recognise(folder, config, workload)
        folder.save_inputs(inputs)  # so that the model of a checkpoint can be loaded
        checkpoint, records = folder.left_off(torch.device(job.device))
    last_test = WorkerEvaluator(config, workload) if workload.tested_by_workers else None
    evaluator = evaluator or last_test or TestSetEvaluator(config, workload)
    if checkpoint:
        evaluator.restore(checkpoint["evaluator"])
    measure = workload.objective.main
    stop_rule = config.stop_rule(measure)
    if checkpoint:
        stop_rule.restore(records, checkpoint.get("stopped_by"))
    checkpoints = _Checkpoints(session, folder, evaluator, records, stop_rule, checkpoint)

    def keep_record(event: Event) -> None:
        if isinstance(event, RoundFinished):
            records.append(event.record)

    needed: list[Listener] = [keep_record]
    if folder:
        best = _BestModel(folder, evaluator, strategy, records, measure)
        needed += [folder, StatusFile(folder.path), best]
    tell = Listeners(needed, listeners, stop_rule)
    name = job.model if job.model != FROM_PYTHON else type(workload.model).__name__
    counts = (job.workers, strategy.rounds, len(records))
    tell(RunStarted(job.strategy, name, job.data, *counts, measure, session.clock))
    for sentence in session.warnings:
        tell(Warned(sentence))
    loop = Loop(strategy, session.connect(), job.workers, evaluator, [tell], stop_rule, last_test)
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
    if folder:
        keep = checkpoints.extendable and summary.stopped_by is None
        folder.finish(summary, final, inputs, sub_models, keep_checkpoint=keep)
    tell(RunFinished(summary))
    path = folder.path if folder else None
    rounds, settings = tuple(records), config.values()
    return FinishedRun(
        summary,
        rounds,
        workload.model_with(final),
        sub_models,
        path,
        inputs,
        workload.objective,
        settings,
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


class _BestModel:
    """A listener that keeps the model of the best test in the run's folder."""

    def __init__(
        self,
        folder: RunFolder,
        evaluator: RunEvaluator,
        strategy: Strategy,
        records: Sequence[RoundRecord],
        measure: Measure,
    ) -> None:
        self._folder = folder
        self._evaluator = evaluator
        self._strategy = strategy
        self._measure = measure
        self._best = measure.worst
        for record in records:
            self._see(record.main_value)

    def _see(self, value: float | None) -> bool:
        """Whether a test is better than all before it."""
        if value is None or not self._measure.is_better(value, self._best):
            return False
        self._best = value
        return True

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RoundFinished):
            return
        # The model of the last round is delivered. The best before it stays, for more rounds.
        if not self._strategy.finished and self._see(event.record.main_value):
            self._folder.save_best(self._evaluator.tested, event.record.round)


class _Checkpoints:
    """Saves the checkpoints of a run that has a folder."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder | None,
        evaluator: RunEvaluator,
        records: Sequence[RoundRecord],
        stop_rule: StopRule,
        last: Tree | None,
    ) -> None:
        self._strategy = session.strategy
        self._job = session.config.job
        self._folder = folder
        self._evaluator = evaluator
        self._records = records
        self._stop_rule = stop_rule
        self._began = time.perf_counter() - (last["wall_time_s"] if last else 0.0)
        self.extendable = bool(last and last["may_go_further"])
        """Whether a run of more rounds could go on from the last checkpoint."""

    def wall_time(self) -> float:
        return time.perf_counter() - self._began

    def save(self, loop: Tree) -> None:
        if self._folder is None or len(self._records) % self._job.checkpoint_every:
            return
        if self._strategy.finished and self.extendable:
            self._folder.keep_checkpoint()
        self.extendable = can_be_extended(self._folder.path, self._strategy, self._job.strategy)
        self._folder.save_checkpoint(
            {
                "may_go_further": self.extendable,
                "stopped_by": self._stop_rule.stopped_by,
                "wall_time_s": self.wall_time(),
                "evaluator": self._evaluator.snapshot(),
                "loop": loop,
            }
        )


def _own_optimizer(
    config: Config, workload: Workload
) -> tuple[OptimizerFactory | None, Schedule | None]:
    """The user's optimizer and schedule, if there are any."""
    return (
        workload.custom_optimizer or find_optimizer(config.recipe.optimizer),
        workload.schedule or find_schedule(config.recipe.schedule),
    )


def _simulation(
    config: Config,
    workload: Workload,
    environment: Environment,
    codecs: Codecs,
    custom_orders: dict[str, WorkerOrder],
) -> Simulation:
    model, units, parts = workload.model, workload.units, workload.worker_samples
    random = draws_randomness(model, workload.example())
    optimizer, schedule = _own_optimizer(config, workload)
    made = trainers(model, units, parts, config.job.precision, workload.objective, optimizer)
    workers = [
        Worker(
            number,
            part,
            model,
            units,
            config.job.seed,
            trainer=trainer,
            draws_randomness=random,
            custom_orders=custom_orders,
            objective=workload.objective,
            schedule=schedule,
            held_back=workload.held_back[number] if workload.held_back else None,
            test_every=config.job.evaluate_every,
        )
        for number, (part, trainer) in enumerate(zip(parts, made, strict=True))
    ]
    # Trainings that run side by side would slow each other down, and be measured so.
    threads = 1 if environment.measured else config.job.threads or _side_by_side(config, workload)
    count = config.job.workers
    return Simulation(LocalWorkers(workers, units, codecs), environment, count, min(threads, count))


def _side_by_side(config: Config, workload: Workload) -> int:
    if torch.device(config.job.device).type != "cuda":
        return os.cpu_count() or 1
    most = max(map(len, workload.worker_samples)) * config.recipe.epochs
    return side_by_side_on_a_gpu(most * flops(workload.units, workload.units.everything()))


def _summary(
    session: Session,
    evaluator: RunEvaluator,
    records: Sequence[RoundRecord],
    final: State,
    wall_time: float,
) -> Summary:
    tested = evaluator.final_score(final)
    *before, last = records
    if last.metric is None or tested.by_worker:
        last = last.tested(tested.loss, tested.main, tested.metrics)
    job = session.config.job
    return summarise(
        [*before, last],
        session.workload.objective.main,
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
    if not session.workload.tested_by_workers:
        labels = session.worker_labels
        return {"accuracy_by_worker": tuple(tested.on(each) for each in labels)}
    tests = [tested.by_worker.get(each) for each in range(session.config.job.workers)]
    found = tuple({} if test is None else test.metrics for test in tests)
    accuracies = tuple(each.get("accuracy") for each in found)
    is_known = any(each is not None for each in accuracies)
    return {"worker_metrics": found, "accuracy_by_worker": accuracies if is_known else ()}
