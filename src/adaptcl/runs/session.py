"""One run from beginning to end: from settings, a model and data to a summary.

This is where the parts meet. The command line brings models and data by name; from Python,
`adaptcl.run(...)` takes anybody's `nn.Module` and data sets.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from adaptcl.codecs import codec_class
from adaptcl.config import Config
from adaptcl.config.config import FROM_PYTHON
from adaptcl.custom import telling_whose
from adaptcl.data import missing_classes
from adaptcl.data.samples import Inputs
from adaptcl.engines.environment import Environment
from adaptcl.engines.loop import Engine
from adaptcl.engines.simulation import Simulation
from adaptcl.events import Event, Listener, RoundFinished, RunFinished, RunStarted, Warned
from adaptcl.pruning import custom_worker_orders
from adaptcl.records import Summary, summarise
from adaptcl.runs.averaging import Averaging
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.identity import lengthen, marks, may_go_further, refuse_others
from adaptcl.runs.materials import Materials
from adaptcl.runs.misfit import refuse_misfit, refuse_tables
from adaptcl.runs.result import Result
from adaptcl.runs.sub_models import Savings, SubModels
from adaptcl.storage import Tree
from adaptcl.strategies import Job, Strategy, strategy_class
from adaptcl.strategies.strategy import Closed
from adaptcl.training.devices import gpu_left_as_found, side_by_side_on_a_gpu, trainers
from adaptcl.training.evaluation import FreshStatistics, Judge
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.worker import Worker
from adaptcl.units import State, flops, trace


@gpu_left_as_found()
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
        self._averaging = Averaging(self._job.averaging, self._units.constants)
        if folder:
            recognise(folder, config, materials)
        device = torch.device(self._job.device)
        checkpoint, self._records = folder.left_off(device) if folder else (None, [])
        self._may_go_further = bool(checkpoint and checkpoint["may_go_further"])
        """Whether the last checkpoint is one that a run of more rounds could go on from."""
        if checkpoint:
            self._averaging.restore(checkpoint["averaging"])
        self._engine_tree: Tree | None = checkpoint["engine"] if checkpoint else None
        self._wall_time_before: float = checkpoint["wall_time_s"] if checkpoint else 0.0
        self.observed_before: Tree = checkpoint["observed"] if checkpoint else None
        """What `observed` gave at the checkpoint from which the run goes on."""

    @gpu_left_as_found()
    def run(self) -> Result:
        """Train, and gather what came of it."""
        # Not earlier: a server puts together all its runs before it begins with the first.
        self._began = time.perf_counter() - self._wall_time_before
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
        summary = self._summary(final := self._delivered())
        sub_models = SubModels.of(self._units, self._strategy.sub_models())
        inputs = Inputs.of(self._materials.test, self._materials.classes)
        if self._folder:
            self._folder.finish(
                summary, final, inputs, sub_models, keep_checkpoint=self._may_go_further
            )
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
            self.time_noise,
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
            [len(part) for part in materials.parts],
        )
        if sentence := environment.ignores_samples():
            self._tell(Warned(sentence))
        random = draws_randomness(materials.model, materials.example())
        custom_orders = custom_worker_orders(self._config.pruning)
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
                custom_orders=custom_orders,
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

    @property
    def time_noise(self) -> float:
        """How much the times of equal tasks are expected to vary."""
        return self._config.environment.time_noise

    def worker_labels(self) -> list[list[int]]:
        """How many samples of each class each worker has, as far as that is known here."""
        return [torch.bincount(part.labels).tolist() for part in self._materials.parts]

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
            if self._strategy.finished and self._may_go_further:
                self._folder.keep_checkpoint()
            self._may_go_further = may_go_further(
                self._folder.path, self._strategy, self._job.strategy
            )
            self._folder.save_checkpoint(
                {
                    "may_go_further": self._may_go_further,
                    "wall_time_s": self._wall_time(),
                    "averaging": self._averaging.snapshot(),
                    "observed": self.observed(),
                    "engine": tree,
                }
            )

    def _wall_time(self) -> float:
        return time.perf_counter() - self._began

    def _summary(self, final: State) -> Summary:
        tested = self._judge.test(final)
        *before, last = self._records
        if last.accuracy is None:
            last = replace(last, accuracy=tested.accuracy)
        return summarise(
            [*before, last],
            strategy=self._job.strategy,
            wall_time_s=self._wall_time(),
            **Savings.of(self._units, self._strategy.sub_models())._asdict(),
            accuracy_by_class=tested.by_class,
            accuracy_by_worker=tuple(tested.on(each) for each in self.worker_labels()),
            seed=self._job.seed,
            workers=self._job.workers,
            model=self._job.model,
            data=self._job.data,
        )


def recognise(folder: RunFolder, config: Config, materials: Materials) -> None:
    """Note what a run is begun with; an error if it goes on with anything but more rounds."""
    now, before = marks(config, materials), folder.marks()
    if before is None:
        folder.save_marks(now)
    else:
        refuse_others(before, now)
        if before["settings"]["rounds"] != now["settings"]["rounds"]:
            lengthen(folder, config, now)
