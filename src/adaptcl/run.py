"""One run from beginning to end: from settings, a model and data to a summary.

This is where the parts meet. The command line brings models and data by name; from Python,
`adaptcl.run(...)` takes anybody's `nn.Module` and data sets.
"""

from __future__ import annotations

import copy
import inspect
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptcl import config as configuration
from adaptcl.averaging import Averaging
from adaptcl.codecs import codec_class
from adaptcl.config import Config
from adaptcl.data import missing_classes
from adaptcl.delivered import Delivered
from adaptcl.engines.engine import Engine
from adaptcl.engines.environment import Environment
from adaptcl.engines.simulation import Simulation
from adaptcl.errors import AdaptCLWarning
from adaptcl.events import Event, Listener, RoundFinished, RunFinished, RunStarted, Warned
from adaptcl.factories import name_of, telling_whose
from adaptcl.inputs import Inputs
from adaptcl.materials import Materials, given, given_parts
from adaptcl.misfit import refuse_misfit, refuse_tables
from adaptcl.pruning import own_worker_orders
from adaptcl.recognition import marks, refuse_others
from adaptcl.records import RoundRecord, Summary
from adaptcl.run_folder import (
    RunFolder,
    read_delivered,
    read_finished,
    summarise,
)
from adaptcl.snapshot import Tree
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.strategies.strategy import Closed
from adaptcl.sub_models import SubModels
from adaptcl.training.evaluate import Judge
from adaptcl.training.fresh_statistics import FreshStatistics
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.trainers import precision_put_back, side_by_side_on_a_gpu, trainers
from adaptcl.training.worker import Worker
from adaptcl.units import State, flops, kept_key, retention, trace

FROM_PYTHON = "(given from Python)"
"""Stands in the settings for a model or data that has no name."""


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

    def __repr__(self) -> str:
        """A line; all rounds of all workers would fill screens."""
        told = self.summary
        return (
            f"<Result of {told.strategy}: accuracy {100 * told.accuracy:.2f} % after {told.rounds} "
            f"rounds and {told.virtual_time_s:.1f} virtual seconds>"
        )


def run(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    preset: str = configuration.DEFAULT_PRESET,
    **settings: Any,
) -> Result:
    """Train your own model on your own data with simulated workers.

    `train` and `test` are data sets: `(inputs, labels)` pairs of tensors or arrays, or anything
    with `len` and items of `(input, label)`. `train` may also be a list with one data set for each
    worker; otherwise it is dealt by the setting `partition`. The model given is not changed. All
    other settings are those of the command line, with underscores: `strategy="adaptcl",
    workers=10, rounds=20, sigma=2`. A strategy, codec or pruning order of your own is named as
    there, `strategy="package.module:Class"`, or given as the class itself. With `out` the run is
    written to that folder, and `resume=True` goes on with a run there that was interrupted, or
    gives back what came of it if it is finished.

    `listeners` are functions of one event (`adaptcl.events`), called as things happen;
    `adaptcl.Progress` is one that shows how the run gets on. What the run warns of is also an
    ordinary Python warning.
    """
    listeners = [_as_warning, *listeners]
    values = {**configuration.preset(preset), "model": FROM_PYTHON, "data": FROM_PYTHON}
    parts = given_parts(train)
    if parts is not None:
        values["workers"] = len(parts)
    named = {k: name_of(v, k) if inspect.isclass(v) else v for k, v in settings.items()}
    config = configuration.configure(configuration.over(values, named))
    materials = given(copy.deepcopy(model), train if parts is None else parts, test, config.job)
    path = Path(out) if out is not None else None
    if path is None:
        return execute(config, materials, None, listeners)
    if not (resume and (path / "config.toml").exists()):
        check(config, materials)
        config = config.anchored()
        return execute(config, materials, RunFolder.create(path, config.to_toml()), listeners)
    config = config.anchored()
    finished = read_finished(path)
    if finished is None:
        return execute(config, materials, RunFolder.open(path), listeners)
    with closing(RunFolder.open(path)) as folder:
        _recognise(folder, config, materials)
    state, inputs, sub_models = read_delivered(path)
    materials.model.load_state_dict(state)
    return Result(*finished, materials.model.eval(), sub_models, path, inputs)


@precision_put_back()
def check(config: Config, materials: Materials) -> None:
    """Refuse what only model and data can tell is wrong, while no folder has been made yet."""
    with telling_whose(config.named_methods):
        Session(config, materials, None, ()).engine()


def execute(
    config: Config,
    materials: Materials,
    folder: RunFolder | None = None,
    listeners: Sequence[Listener] = (),
) -> Result:
    """Run to the end, from the beginning or from where the folder was left."""
    try:
        with telling_whose(config.named_methods):
            return Session(config, materials, folder, listeners).run()
    finally:
        if folder is not None:
            folder.close()


class Session:
    """The parts of one run, put together."""

    def __init__(
        self,
        config: Config,
        materials: Materials,
        folder: RunFolder | None,
        listeners: Sequence[Listener],
    ) -> None:
        self._config = config
        self._job = config.job
        self._materials = materials
        self._folder = folder
        self._listeners: list[Listener] = [*([folder] if folder else []), *listeners]
        refuse_tables(materials)
        self._units = trace(materials.model, materials.example(), materials.fixed)
        refuse_misfit(materials, config.recipe.batch_size)
        self._strategy = self._new_strategy()
        self._averaging = Averaging(self._job.averaging)
        checkpoint, self._records = folder.left_off() if folder else (None, [])
        if folder:
            _recognise(folder, config, materials)
        if checkpoint and "averaging" in checkpoint:  # as it is in all but the oldest
            self._averaging.restore(checkpoint["averaging"])
        self._engine_tree: Tree | None = checkpoint["engine"] if checkpoint else None
        self._began = time.perf_counter() - (checkpoint["wall_time_s"] if checkpoint else 0.0)
        self.observed_before: Tree = checkpoint["observed"] if checkpoint else None
        """What `observed` gave at the checkpoint from which the run goes on."""

    @precision_put_back()
    def run(self) -> Result:
        """Train, and gather what came of it."""
        job = self._job
        # Before workers train: to look at a model may draw from the generator they may share.
        self._judge = Judge(self._materials.model, self._materials.test)
        self._fresh = self._measuring(job.fresh_statistics) if job.fresh_statistics else None
        name = job.model if job.model != FROM_PYTHON else type(self._materials.model).__name__
        self._tell(
            RunStarted(
                job.strategy,
                name,
                job.data,
                job.workers,
                self._strategy.rounds,
                len(self._records),
            )
        )
        self.engine().run(self._checkpoint, self._engine_tree)
        summary, final = self._summary(), self._delivered()
        sub_models = SubModels.of(self._units, self._strategy.sub_models())
        inputs = Inputs.of(self._materials.test, self._materials.classes)
        if self._folder:
            self._folder.finish(summary, final, inputs, sub_models)
        self._tell(RunFinished(summary))
        trained = copy.deepcopy(self._materials.model)
        trained.load_state_dict(final)
        folder = self._folder.path if self._folder else None
        return Result(summary, tuple(self._records), trained.eval(), sub_models, folder, inputs)

    def _new_strategy(self) -> Strategy:
        state = {k: v.detach().clone() for k, v in self._materials.model.state_dict().items()}
        job = Job(
            self._units,
            state,
            self._job.workers,
            self._job.rounds,
            self._config.recipe,
            self._job.seed,
        )
        return strategy_class(self._job.strategy)(job, self._config.strategy)

    def engine(self) -> Engine:
        """What runs the strategy: a simulation, unless a subclass knows better."""
        materials, seed = self._materials, self._job.seed
        if sentence := missing_classes(materials.parts, materials.test, materials.classes):
            self._tell(Warned(sentence))
        environment = Environment(
            self._config.environment,
            self._units,
            self._job.workers,
            self._config.recipe.epochs,
            seed,
        )
        random = draws_randomness(materials.model, materials.example())
        own_orders = own_worker_orders(self._config.pruning)
        own = trainers(materials.model, self._units, materials.parts, self._job.precision)
        workers = [
            Worker(
                w,
                part,
                materials.model,
                self._units,
                seed,
                trainer=each,
                draws_randomness=random,
                own_orders=own_orders,
            )
            for w, (part, each) in enumerate(zip(materials.parts, own, strict=True))
        ]
        # Trainings that run side by side would slow each other down, and be measured so.
        threads = 1 if environment.measured else self._job.threads or self._side_by_side()
        return Simulation(
            self._strategy,
            workers,
            self._units,
            codec_class(self._job.codec)(self._config.codec),
            environment,
            judge=self._accuracy,
            listener=self._tell,
            threads=min(threads, self._job.workers),
        )

    def observed(self) -> Tree:
        """What a subclass has seen of the run so far, to be kept in its checkpoints."""
        return None

    def _side_by_side(self) -> int:
        if torch.device(self._job.device).type != "cuda":
            return os.cpu_count() or 1
        most = max(map(len, self._materials.parts)) * self._config.recipe.epochs
        return side_by_side_on_a_gpu(most * flops(self._units, self._units.everything()))

    def _accuracy(self, state: State, closed: Closed) -> float | None:
        """What the model delivered now would be right about; None where it is not tested."""
        model = self._averaging.add(state, closed)
        # Not `round < rounds`: with workers lost for good, fewer rounds may be the last ones.
        if closed.round % self._job.evaluate_every and not self._strategy.finished:
            return None
        return self._measured(self._with_statistics(model))

    def _delivered(self) -> State:
        return self._with_statistics(self._averaging.model or self._strategy.model())

    def _with_statistics(self, state: State) -> State:
        return state if self._fresh is None else self._fresh.of(state)

    def _measuring(self, count: int) -> FreshStatistics:
        return FreshStatistics(self._materials.model, self._materials.parts, count)

    def _measured(self, state: State) -> float:
        return self._judge.accuracy(state)

    def _tell(self, event: Event) -> None:
        if isinstance(event, RoundFinished):
            self._records.append(event.record)
        for listener in self._listeners:
            listener(event)

    def _checkpoint(self, tree: Tree) -> None:
        if self._folder and len(self._records) % self._job.checkpoint_every == 0:
            self._folder.save_checkpoint(
                {
                    "wall_time_s": self._wall_time(),
                    "averaging": self._averaging.snapshot(),
                    "observed": self.observed(),
                    "engine": tree,
                }
            )

    def _wall_time(self) -> float:
        return time.perf_counter() - self._began

    def _summary(self) -> Summary:
        units = self._units
        # Of ten thousand workers most have one of a few sub-models.
        distinct = {kept_key(each): each for each in self._strategy.sub_models()}
        share = {key: retention(units, each) for key, each in distinct.items()}
        work = {key: flops(units, each) for key, each in distinct.items()}
        keys = [kept_key(each) for each in self._strategy.sub_models()]
        whole = max(1, flops(units, units.everything()))
        retentions = tuple(share[key] for key in keys)
        *before, last = self._records
        if last.accuracy is None:
            last = replace(last, accuracy=self._measured(self._delivered()))
        return summarise(
            [*before, last],
            strategy=self._job.strategy,
            wall_time_s=self._wall_time(),
            retention=retentions,
            params_saved=1 - sum(retentions) / len(retentions),
            flops_saved=1 - sum(work[key] for key in keys) / whole / len(keys),
            seed=self._job.seed,
            workers=self._job.workers,
            model=self._job.model,
            data=self._job.data,
        )


def _as_warning(event: Event) -> None:
    if isinstance(event, Warned):
        warnings.warn(event.message, AdaptCLWarning, stacklevel=1)


def _recognise(folder: RunFolder, config: Config, materials: Materials) -> None:
    """Note what a run is begun with; an error if it goes on with anything else."""
    now, before = marks(config, materials), folder.marks()
    if before is None:
        folder.save_marks(now)
    else:
        refuse_others(before, now)
