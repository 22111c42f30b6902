"""The trainer on a GPU: a step is captured once and replayed.

A step of a small network is hundreds of tiny kernels, and launching them from Python takes longer
than running them. Here the whole step (gathering the batch, forward, backward, group lasso,
update) is captured as one CUDA graph for each sub-model shape and batch size. A round is then a
series of replays that read their batches from a table on the GPU. Captured sub-models are kept and
lent to any worker with a task of that shape, so a new graph is needed only after a pruning.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import warn_user
from adaptcl.training.gpu.captured_buffers import give_back, is_short
from adaptcl.training.gpu.captured_model import CannotCaptureError, CapturedModel
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.task import Recipe
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import Kept, State, UnitMap, kept_key, submodel


class CapturedModels:
    """All captured models of a process, each lent to one task's trainer at a time."""

    def __init__(
        self,
        model: nn.Module,
        units: UnitMap,
        samples: Samples,
        *,
        half: bool,
        objective: Objective = CLASSIFICATION,
    ) -> None:
        self.model = model
        self.objective = objective
        self.units = units
        self.possible = True  # False once a model could not be captured; then no other is tried
        self._samples = samples
        self._half = half
        self._lock = threading.Lock()
        self._unused: list[CapturedModel] = []

    def borrow(self, kept: Kept, state: State, worker: int) -> CapturedModel:
        """A captured model of this shape with these tensors; preferably this worker's last one."""
        captured = self._take(kept_key(kept), worker)
        if captured is None:
            self._make_room()
            model = submodel(self.model, self.units, kept, state)
            captured = CapturedModel(
                model, self.units, kept, self._samples, half=self._half, objective=self.objective
            )
        else:
            captured.load(state)
        captured.last_worker = worker
        return captured

    def take_back(self, captured: CapturedModel) -> None:
        """Let other tasks have a model."""
        with self._lock:
            self._unused.append(captured)

    def _take(self, shape: bytes, worker: int) -> CapturedModel | None:
        with self._lock:
            fitting = [each for each in self._unused if each.shape == shape]
            if not fitting:
                return None
            chosen = next((each for each in fitting if each.last_worker == worker), fitting[0])
            self._unused.remove(chosen)
            return chosen

    def _make_room(self) -> None:
        """Drop the older half of the unused models if memory is short."""
        if not is_short(self._samples.device):
            return
        with self._lock:
            del self._unused[: len(self._unused) // 2 + 1]
        give_back()


class CapturedTrainer:
    """One worker's trainer on a GPU; falls back to the plain loop if capturing is impossible.

    `models` holds all workers' samples in one table; this worker's begin at index `begin`.
    `samples` are the same, for the plain loop. Two tasks never share a trainer, and it keeps a
    borrowed model until it loads or releases.
    """

    def __init__(self, models: CapturedModels, samples: Samples, begin: int, worker: int) -> None:
        self._models = models
        self._samples = samples
        self._begin = begin
        self._worker = worker
        self._plain = PlainTrainer(models.model, models.units, samples, objective=models.objective)
        self._lent: CapturedModel | None = None

    def for_a_task(self) -> CapturedTrainer:
        return CapturedTrainer(self._models, self._samples, self._begin, self._worker)

    def load(self, kept: Kept, state: State) -> nn.Module:
        self.release()
        if self._models.possible:
            try:
                self._lent = self._models.borrow(kept, state, self._worker)
                return self._plain.hold(self._lent.model, kept)
            except CannotCaptureError as error:
                self._give_up(error)
        return self._plain.load(kept, state)

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso_lambda: float,
        towards: State | None = None,
        rate_factor: float = 1.0,
    ) -> Tensor:
        """Replay the step for each batch; only plain SGD with a step a batch is captured."""
        if not batches:
            return torch.empty(0, device=self._samples.device)
        is_plain_sgd = recipe.optimizer == "sgd" and towards is None
        is_plain_sgd &= recipe.clip_norm == 0 and recipe.accumulation == 1
        if is_plain_sgd and self._lent is not None:
            try:
                return self._lent.run(
                    batches, moves, self._begin, recipe, lasso_lambda, rate_factor
                )
            except CannotCaptureError as error:
                self._give_up(error)
                self._lent = None
        return self._plain.run(batches, moves, recipe, lasso_lambda, towards, rate_factor)

    def state(self) -> State:
        return self._plain.state() if self._lent is None else self._lent.state()

    def release(self) -> None:
        self._plain.release()
        if self._lent is not None:
            self._models.take_back(self._lent)
            self._lent = None

    def _give_up(self, reason: CannotCaptureError) -> None:
        if self._models.possible:
            warn_user(
                f"Steps of this model cannot be captured ({reason}); it trains without capture."
            )
        self._models.possible = False
