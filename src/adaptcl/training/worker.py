"""What a worker does between receiving a task and sending its update (Algorithm 1, worker side).

Build the sub-model, train βE epochs sparsely, prune and rebuild it smaller if told to, train the
rest, give back tensors and kept units.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.codecs.codec import Memory
from adaptcl.data import Samples
from adaptcl.pruning import ServerView, WorkerView, importance_lost, prune, worker_order
from adaptcl.pruning.cig_bnscalor import CIGBNscalor
from adaptcl.seeds import derive, generator
from adaptcl.training.augment import crop_and_flip
from adaptcl.training.batches import batches, steps
from adaptcl.training.lasso import GroupLasso, coefficient
from adaptcl.training.task import Cut, Pruning, Task, Update
from adaptcl.units import Kept, UnitMap, put_back, recut, submodel

_JUDGED_SAMPLES = 256
"""How many of its samples a worker uses to see what a pruning did to the loss."""

_ONE_AT_A_TIME = threading.Lock()
"""Held while a model draws from the global generator, which all threads share."""


@dataclass(frozen=True)
class WorkerMemory:
    """What a worker remembers from task to task. It never leaves the worker."""

    lasso: float | None = None
    """The group lasso's λ, found on the worker's very first batch."""
    codec: Memory = field(default_factory=Memory)


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
        draws_randomness: bool = False,
    ) -> None:
        self.number = number
        self.samples = samples
        self._model = model
        self._units = units
        self._seed = seed
        self._draws_randomness = draws_randomness

    def carry_out(self, task: Task, memory: WorkerMemory) -> tuple[Update, WorkerMemory]:
        """Do what the task says; the update, and the memory for the next task."""
        if not self._draws_randomness:
            return self._carry_out(task, memory)
        # Dropout and its like draw from PyTorch's global generator: give it the task's own seed.
        with torch.random.fork_rng(), _ONE_AT_A_TIME:
            torch.manual_seed(derive(self._seed, "model", self.number, task.round))
            return self._carry_out(task, memory)

    def _carry_out(self, task: Task, memory: WorkerMemory) -> tuple[Update, WorkerMemory]:
        recipe = task.recipe
        total = steps(len(self.samples), recipe.batch_size, recipe.epochs)
        first = round(recipe.beta * total) if task.pruning else total
        randomness = generator(self._seed, "batches", self.number, task.round)
        stream = batches(len(self.samples), recipe.batch_size, total, randomness)

        model = submodel(self._model, self._units, task.kept, task.state)
        training = _SparseTraining(self, task, randomness, memory.lasso)
        training.run(model, task.kept, stream, first)
        kept, cut = task.kept, None
        if task.pruning:
            model, kept, cut = self._prune(model, task, task.pruning)
            training.run(model, kept, stream, total - first)
        update = Update(
            worker=self.number,
            round=task.round,
            state={name: tensor.detach() for name, tensor in model.state_dict().items()},
            kept=kept,
            samples=len(self.samples),
            loss=training.mean_loss(),
            cut=cut,
        )
        return update, WorkerMemory(lasso=training.lasso, codec=memory.codec)

    def _prune(self, model: nn.Module, task: Task, pruning: Pruning) -> tuple[nn.Module, Kept, Cut]:
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
            importance = worker_order(pruning.order).importance(view)
        kept = prune(self._units, task.kept, importance, pruning.rate)
        smaller = submodel(
            self._model,
            self._units,
            kept,
            recut(model.state_dict(), self._units, task.kept, kept),
        )
        lost = importance_lost(task.kept, kept, self._importance_now(model, task))
        return smaller, kept, Cut(lost, self._loss(model), self._loss(smaller))

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


class _SparseTraining:
    """SGD with the group lasso, over as many mini-batches as asked, on one model after another."""

    def __init__(
        self, worker: Worker, task: Task, randomness: torch.Generator, lasso: float | None
    ) -> None:
        self._worker = worker
        self._task = task
        self._randomness = randomness
        self._losses: list[Tensor] = []
        self.lasso = lasso

    def run(self, model: nn.Module, kept: Kept, stream: Iterator[Tensor], count: int) -> None:
        recipe = self._task.recipe
        samples = self._worker.samples
        device = samples.labels.device
        penalty = GroupLasso(model, self._worker._units, kept) if recipe.strength > 0 else None
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        model.train()
        for _ in range(count):
            inputs, labels = samples.batch(next(stream).to(device))
            if recipe.augmentation:
                inputs = crop_and_flip(inputs, self._randomness)
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if penalty is not None:
                if self.lasso is None:
                    self.lasso = coefficient(
                        recipe.strength, float(loss.detach()), penalty.penalty()
                    )
                penalty.add_gradient(self.lasso * self._task.lasso_scale)
            optimizer.step()
            self._losses.append(loss.detach())

    def mean_loss(self) -> float:
        return float(torch.stack(self._losses).mean())
