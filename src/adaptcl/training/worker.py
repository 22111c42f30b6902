"""One round on a worker: the worker's side of Algorithm 1.

The paper prints it like this, and `Worker._follow_algorithm_1` does it.

    1  receive θ and P from the server                  a `Task`
    2  θ ← SparseTrain(β·E, θ, D)                       `sparse_train`, `Trainer.run`
    3  if P > 0:
    4      mask ← NetworkPrune(P)                       `_units_left`
    5      θ, I ← NetworkReconfigure(θ, mask)           `recut` and `Trainer.load`
    6  else:
    7      I stays as it was
    8  θ ← SparseTrain((1 − β)·E, θ, D)
    9  send θ and I to the server                       an `Update`

θ are the tensors of the sub-model, I its kept units, D the worker's samples and P the pruned rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adaptcl import seeds
from adaptcl.codecs.codec import Memory
from adaptcl.data import Samples
from adaptcl.pruning import WorkerOrder, WorkerView, importance_lost, worker_order
from adaptcl.pruning.cig_bnscalor import bn_importance
from adaptcl.training.batches import batches, draw_moves
from adaptcl.training.lasso_lambda import lambda_of_batch
from adaptcl.training.objectives.evaluation import tested_locally
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.optimizers import Schedule, rate_factor
from adaptcl.training.randomness import Draws, SeedModel, seeded
from adaptcl.training.task import Pruning, PruningCost, Task, Update, WorkerTest
from adaptcl.training.trainer import PlainTrainer, Trainer
from adaptcl.units import Kept, UnitMap, put_back, recut
from adaptcl.units.user_model import evaluating

_LOSS_SAMPLES = 256
"""How many samples a worker measures the loss on, before a pruning and after its round."""


@dataclass(frozen=True)
class WorkerMemory:
    """What a worker remembers from task to task. Of this, only λ is sent to the server."""

    lasso_lambda: float | None = None
    """The group lasso's λ, from the worker's very first batch or from its first task."""
    codec: Memory = field(default_factory=Memory)


class Worker:
    """One holder of data. It keeps no state: the same task and memory give the same update."""

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
        objective: Objective = CLASSIFICATION,
        schedule: Schedule | None = None,
        held_back: Samples | None = None,
        test_every: int = 1,
    ) -> None:
        """With `held_back` samples the worker tests models on them before it trains, in round 1 and
        every `test_every` rounds. Rounds count as in its tasks: behind a barrier all workers of a
        round test, or none."""
        self.number = number
        self.samples = samples
        self.model = model
        self.units = units
        self._seed = seed
        self._objective = objective
        self._schedule = schedule
        self._trainer = trainer or PlainTrainer(model, units, samples, objective=objective)
        self._draws_randomness = draws_randomness
        self._custom_orders = custom_orders or {}
        self.held_back = held_back
        self._test_every = test_every

    def carry_out(self, task: Task, memory: WorkerMemory) -> tuple[Update, WorkerMemory]:
        """Do one round's work; the update, and the memory for the next task."""
        seed = seeds.derive(self._seed, "model", self.number, task.round)
        trainer = self._trainer.for_a_task()
        try:
            with seeded(self._draws_randomness, seed) as seed_model:
                if task.only_tests:
                    return self._only_test(task, trainer), memory
                return self._follow_algorithm_1(task, memory, trainer, seed_model)
        finally:
            trainer.release()

    def _follow_algorithm_1(
        self, task: Task, memory: WorkerMemory, trainer: Trainer, seed_model: SeedModel
    ) -> tuple[Update, WorkerMemory]:
        recipe = task.recipe.in_round(task.round)
        factor = rate_factor(self._schedule, task.schedule_round or task.round)
        total = task.mini_batch_count(len(self.samples))
        generator = seeds.generator(self._seed, "batches", self.number, task.round)
        order = list(batches(len(self.samples), recipe.batch_size, total, generator))
        moves = (
            [draw_moves(len(each), generator) for each in order] if recipe.augmentation else None
        )

        # Line 1: θ, I and P are the task's.
        model, kept = seed_model(trainer.load(task.kept, dict(task.state))), task.kept
        test = self._test(model) if (task.round - 1) % self._test_every == 0 else None
        start = dict(task.state) if recipe.proximal else None
        lasso_lambda = memory.lasso_lambda
        if lasso_lambda is None:
            lasso_lambda = task.lasso_lambda
        if lasso_lambda is None:
            # A round without mini-batches has none to find λ on.
            spare = batches(len(self.samples), recipe.batch_size, 1, generator)
            first = order[0] if order else next(spare)
            lasso_lambda = lambda_of_batch(
                model, self.units, kept, self.samples, first, recipe.strength, self._objective
            )

        def sparse_train(begin: int, end: int) -> Tensor:
            """Train on these mini-batches of the round; the loss of each."""
            return trainer.run(
                order[begin:end],
                moves[begin:end] if moves else None,
                recipe,
                lasso_lambda if task.is_sparse else 0.0,
                start,
                factor,
            )

        pruning_cost = importance = None
        if task.pruning is None:
            # Lines 2 and 8 in one go: the optimizer keeps its momentum.
            losses = sparse_train(0, total)
        else:
            before = round(recipe.beta * total)
            losses = sparse_train(0, before)  # Line 2.
            left, importance = self._units_left(model, task, task.pruning)  # Line 4.
            lost = importance_lost(kept, left, self._bn_importance(model, task))
            loss_before = self._loss(model)
            trained = recut(trainer.state(), self.units, kept, left)
            model = seed_model(trainer.load(left, trained))  # Line 5.
            start = start and recut(start, self.units, kept, left)
            kept = left
            losses = torch.cat([losses, sparse_train(before, total)])  # Line 8.
            pruning_cost = PruningCost(lost, loss_before, self._loss(model))

        # Line 9.
        update = Update(
            worker=self.number,
            round=task.round,
            state=trainer.state(),
            kept=kept,
            samples=len(self.samples),
            loss=float(losses.mean()) if total else self._loss(model),
            pruning_cost=pruning_cost,
            importance=importance,
            lasso_lambda=lasso_lambda,
            test=test,
        )
        return update, WorkerMemory(lasso_lambda, memory.codec)

    def _only_test(self, task: Task, trainer: Trainer) -> Update:
        state = dict(task.state)
        test = self._test(trainer.load(task.kept, state))
        samples = len(self.samples)
        return Update(task.worker, task.round, state, task.kept, samples, loss=0.0, test=test)

    def _test(self, model: nn.Module) -> WorkerTest | None:
        if self.held_back is None:
            return None
        return tested_locally(model, self.held_back, self._objective)

    def _units_left(
        self, model: nn.Module, task: Task, pruning: Pruning
    ) -> tuple[Kept, Tensor | None]:
        """The units that stay (NetworkPrune), and their importance if it is computed here."""
        if pruning.importance is not None:
            return pruning.units_left(self.units, task.kept, pruning.importance), None
        view = WorkerView(
            units=self.units,
            model=model,
            kept=task.kept,
            samples=self.samples,
            batch_size=task.recipe.batch_size,
            seed=seeds.derive(self._seed, "order", self.number, task.round),
            objective=self._objective,
        )
        importance = worker_order(pruning.order, self._custom_orders).importance(view)
        return pruning.units_left(self.units, task.kept, importance), importance

    def _bn_importance(self, model: nn.Module, task: Task) -> Tensor:
        """Importance by the present BN scales, by which every cut is measured."""
        whole = {name: torch.zeros_like(t) for name, t in self.model.state_dict().items()}
        put_back(model.state_dict(), self.units, task.kept, whole)
        return bn_importance(self.units, whole)

    @torch.no_grad()
    def _loss(self, model: nn.Module) -> float:
        """Loss on the first few samples, in evaluation mode."""
        chosen = torch.arange(min(_LOSS_SAMPLES, len(self.samples)))
        inputs, targets = self.samples.batch(chosen.to(self.samples.device))
        with evaluating(model):
            outputs = self._objective.outputs(model, inputs, targets)
        return float(self._objective.mean_loss(outputs, targets))
