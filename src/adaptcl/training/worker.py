"""What a worker does between receiving a task and sending its update (Algorithm 1, worker side).

Build the sub-model, train βE epochs sparsely, prune and rebuild it smaller if told to, train the
rest, give back tensors and kept units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.codecs.codec import Memory
from adaptcl.data import Samples
from adaptcl.errors import DataError, SettingError
from adaptcl.pruning import (
    ServerView,
    WorkerOrder,
    WorkerView,
    importance_lost,
    prune,
    worker_order,
)
from adaptcl.pruning.cig_bnscalor import CIGBNscalor
from adaptcl.seeds import derive, generator
from adaptcl.training.batches import batches, draw_moves, smallest_batch
from adaptcl.training.randomness import Draws, Follow, seeded
from adaptcl.training.task import Cut, Pruning, Task, Update
from adaptcl.training.trainer import PlainTrainer, Trainer, first_coefficient
from adaptcl.units import Kept, UnitMap, put_back, recut
from adaptcl.units.forward import unable_alone

_JUDGED_SAMPLES = 256
"""How many of its samples a worker uses to see what a pruning did to the loss."""


@dataclass(frozen=True)
class WorkerMemory:
    """What a worker remembers from task to task. But for λ it never leaves the worker."""

    lasso: float | None = None
    """The group lasso's λ, found on the worker's very first batch or told with its first task."""
    codec: Memory = field(default_factory=Memory)


def refuse_lone_sample(worker: int, model: nn.Module, samples: Samples, batch_size: int) -> None:
    """An error if a step would be on a single sample and the model cannot train on one."""
    if smallest_batch(len(samples), batch_size) > 1:
        return
    first = torch.zeros(1, dtype=torch.int64, device=samples.labels.device)
    unable = unable_alone(model, samples.batch(first)[0])
    if unable is None:
        return
    if batch_size == 1:
        raise SettingError(
            f"{unable} cannot train on a single sample, but batch_size is 1; it must be 2 or more."
        )
    raise DataError(
        f"{unable} cannot train on a single sample, but worker {worker} has only one; give every "
        "worker 2 or more."
    )


class Worker:
    """One holder of data. It has no state of its own: the same task gives the same update."""

    def __init__(
        self,
        number: int,
        samples: Samples,
        model: nn.Module,
        units: UnitMap,
        seed: int,
        *,
        trainer: Trainer | None = None,
        draws_randomness: Draws = Draws.NOTHING,
        custom_orders: Mapping[str, WorkerOrder] | None = None,
    ) -> None:
        self.number = number
        self.samples = samples
        self._model = model
        self._units = units
        self._seed = seed
        self._trainer = trainer or PlainTrainer(model, units, samples)
        self._draws_randomness = draws_randomness
        self._own_orders = custom_orders or {}

    def carry_out(self, task: Task, memory: WorkerMemory) -> tuple[Update, WorkerMemory]:
        """Do what the task says; the update, and the memory for the next task."""
        seed = derive(self._seed, "model", self.number, task.round)
        trainer = self._trainer.for_a_task()
        try:
            with seeded(self._draws_randomness, seed) as follow:
                return self._carry_out(task, memory, trainer, follow)
        except Exception:
            refuse_lone_sample(self.number, self._model, self.samples, task.recipe.batch_size)
            raise
        finally:
            trainer.release()

    def _carry_out(
        self, task: Task, memory: WorkerMemory, trainer: Trainer, follow: Follow
    ) -> tuple[Update, WorkerMemory]:
        recipe = task.recipe.in_round(task.round)
        total = task.steps(len(self.samples))
        randomness = generator(self._seed, "batches", self.number, task.round)
        order = list(batches(len(self.samples), recipe.batch_size, total, randomness))
        moves = (
            [draw_moves(len(each), randomness) for each in order] if recipe.augmentation else None
        )

        model = follow(trainer.load(task.kept, dict(task.state)))
        lasso = task.lasso if memory.lasso is None else memory.lasso
        if lasso is None:
            # A round of no steps has no batch of its own to find λ on.
            first = next(
                iter(order or batches(len(self.samples), recipe.batch_size, 1, randomness))
            )
            lasso = first_coefficient(
                model, self._units, task.kept, self.samples, first, recipe.strength
            )

        towards = dict(task.state) if recipe.proximal else None

        def train(model: nn.Module, kept: Kept, begin: int, end: int) -> Tensor:
            return trainer.run(
                model,
                kept,
                order[begin:end],
                moves[begin:end] if moves else None,
                recipe,
                lasso,
                towards,
            )

        before = round(recipe.beta * total) if task.pruning else total
        losses = train(model, task.kept, 0, before)
        kept, cut = task.kept, None
        if task.pruning:
            model, kept, cut = self._prune(trainer, model, task, task.pruning)
            follow(model)
            towards = towards and recut(towards, self._units, task.kept, kept)
            losses = torch.cat([losses, train(model, kept, before, total)])
        update = Update(
            worker=self.number,
            round=task.round,
            state=trainer.state(model),
            kept=kept,
            samples=len(self.samples),
            loss=float(losses.mean()) if total else self._loss(model),
            cut=cut,
            lasso=lasso,
        )
        return update, WorkerMemory(lasso=lasso, codec=memory.codec)

    def _prune(
        self, trainer: Trainer, model: nn.Module, task: Task, pruning: Pruning
    ) -> tuple[nn.Module, Kept, Cut]:
        importance = pruning.importance
        if importance is None:
            view = WorkerView(
                units=self._units,
                model=model,
                kept=task.kept,
                samples=self.samples,
                batch_size=task.recipe.batch_size,
                seed=derive(self._seed, "order", self.number, task.round),
            )
            importance = worker_order(pruning.order, self._own_orders).importance(view)
        kept = prune(
            self._units,
            task.kept,
            importance,
            pruning.rate,
            pruning.min_retention,
            pruning.width_multiple,
        )
        lost = importance_lost(task.kept, kept, self._importance_now(model, task))
        before = self._loss(model)
        trained = trainer.state(model)
        smaller = trainer.load(kept, recut(trained, self._units, task.kept, kept))
        return smaller, kept, Cut(lost, before, self._loss(smaller))

    def _importance_now(self, model: nn.Module, task: Task) -> Tensor:
        """BN scales as they are now: what is lost is judged by them, whatever the order."""
        whole = {name: torch.zeros_like(t) for name, t in self._model.state_dict().items()}
        put_back(model.state_dict(), self._units, task.kept, whole)
        view = ServerView(self._units, whole, self.number, 0, self._seed)
        return CIGBNscalor().importance(view)

    @torch.no_grad()
    def _loss(self, model: nn.Module) -> float:
        """Loss on the first few samples, in evaluation mode; training mode is put back."""
        was_training = model.training
        model.eval()
        chosen = torch.arange(min(_JUDGED_SAMPLES, len(self.samples)))
        inputs, labels = self.samples.batch(chosen.to(self.samples.labels.device))
        loss = F.cross_entropy(model(inputs), labels)
        model.train(was_training)
        return float(loss)
