"""One run from beginning to end: from settings, a model and data to a summary.

This is where the parts meet. The command line brings models and data by name; from Python,
`adaptcl.run(...)` takes anybody's `nn.Module` and data sets.
"""

from __future__ import annotations

import copy
import os
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adaptcl import config as configuration
from adaptcl.codecs import CODECS
from adaptcl.config import Config
from adaptcl.engines.environment import Environment
from adaptcl.engines.simulation import Simulation
from adaptcl.errors import RunFolderError
from adaptcl.events import Event, Listener, RoundFinished, RunFinished, RunStarted
from adaptcl.materials import Materials, given, given_parts
from adaptcl.records import RoundRecord, Summary
from adaptcl.run_folder import RunFolder, summarise
from adaptcl.snapshot import Tree
from adaptcl.strategies import STRATEGIES, Job, Strategy
from adaptcl.training.evaluate import accuracy
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.worker import Worker
from adaptcl.units import State, flops, retention, trace

FROM_PYTHON = "(given from Python)"
"""Stands in the settings for a model or data that has no name."""


@dataclass(frozen=True)
class Result:
    """What a run gives back."""

    summary: Summary
    rounds: tuple[RoundRecord, ...]
    model: nn.Module
    """The global model, trained."""
    folder: Path | None


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
    workers=10, rounds=20, sigma=2`. With `out` the run is written to that folder, and
    `resume=True` goes on with a run there that was interrupted.
    """
    values = {**configuration.preset(preset), "model": FROM_PYTHON, "data": FROM_PYTHON}
    parts = given_parts(train)
    if parts is not None:
        values["workers"] = len(parts)
    config = configuration.configure({**values, **settings})
    materials = given(copy.deepcopy(model), train if parts is None else parts, test, config.job)
    return execute(config, materials, _folder(out, resume, config), listeners)


def execute(
    config: Config,
    materials: Materials,
    folder: RunFolder | None = None,
    listeners: Sequence[Listener] = (),
) -> Result:
    """Run to the end, from the beginning or from where the folder was left."""
    try:
        return _Session(config, materials, folder, listeners).run()
    finally:
        if folder is not None:
            folder.close()


class _Session:
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
        self._units = trace(materials.model, materials.example(), materials.fixed)
        self._strategy = self._new_strategy()
        checkpoint = folder.checkpoint() if folder else None
        self._engine_tree: Tree | None = checkpoint["engine"] if checkpoint else None
        self._records = (
            folder.keep_rounds(checkpoint["rounds"] if checkpoint else 0) if folder else []
        )
        self._began = time.perf_counter() - (checkpoint["wall_time_s"] if checkpoint else 0.0)

    def run(self) -> Result:
        """Train, and gather what came of it."""
        job = self._job
        name = job.model if job.model != FROM_PYTHON else type(self._materials.model).__name__
        self._tell(
            RunStarted(job.strategy, name, job.data, job.workers, job.rounds, len(self._records))
        )
        self._simulation().run(self._checkpoint, self._engine_tree)
        summary, final = self._summary(), self._strategy.model()
        if self._folder:
            self._folder.finish(summary, final)
        self._tell(RunFinished(summary))
        trained = self._materials.model
        trained.load_state_dict(final)
        folder = self._folder.path if self._folder else None
        return Result(summary, tuple(self._records), trained, folder)

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
        return STRATEGIES[self._job.strategy](job, self._config.strategy)

    def _simulation(self) -> Simulation:
        materials, seed = self._materials, self._job.seed
        environment = Environment(self._config.environment, self._units, self._job.workers, seed)
        random = draws_randomness(materials.model, materials.example())
        workers = [
            Worker(w, part, materials.model, self._units, seed, draws_randomness=random)
            for w, part in enumerate(materials.parts)
        ]
        # Trainings that run side by side would slow each other down, and be measured so.
        threads = 1 if environment.measured else self._job.threads or os.cpu_count() or 1
        return Simulation(
            self._strategy,
            workers,
            self._units,
            CODECS[self._job.codec](self._config.codec),
            environment,
            judge=self._accuracy,
            listener=self._tell,
            threads=min(threads, self._job.workers),
        )

    def _accuracy(self, state: State, round_: int) -> float | None:
        if round_ % self._job.evaluate_every and round_ < self._job.rounds:
            return None
        judged = copy.deepcopy(self._materials.model)
        judged.load_state_dict(state)
        return accuracy(judged, self._materials.test)

    def _tell(self, event: Event) -> None:
        if isinstance(event, RoundFinished):
            self._records.append(event.record)
        for listener in self._listeners:
            listener(event)

    def _checkpoint(self, tree: Tree) -> None:
        if self._folder and len(self._records) % self._job.checkpoint_every == 0:
            self._folder.save_checkpoint(
                {"rounds": len(self._records), "wall_time_s": self._wall_time(), "engine": tree}
            )

    def _wall_time(self) -> float:
        return time.perf_counter() - self._began

    def _summary(self) -> Summary:
        units, kept = self._units, self._strategy.sub_models()
        whole = max(1, flops(units, units.everything()))
        retentions = tuple(retention(units, each) for each in kept)
        return summarise(
            self._records,
            strategy=self._job.strategy,
            wall_time_s=self._wall_time(),
            retention=retentions,
            params_saved=1 - sum(retentions) / len(retentions),
            flops_saved=1 - sum(flops(units, each) for each in kept) / whole / len(kept),
            seed=self._job.seed,
            workers=self._job.workers,
            model=self._job.model,
            data=self._job.data,
        )


def _folder(out: str | Path | None, resume: bool, config: Config) -> RunFolder | None:
    if out is None:
        return None
    path = Path(out)
    if not (resume and (path / "config.toml").exists()):
        return RunFolder.create(path, config.to_toml())
    before = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    if before != tomllib.loads(config.to_toml()):
        raise RunFolderError(f"{path} holds a run with other settings than these.")
    return RunFolder.open(path)
