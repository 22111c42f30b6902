"""Training on a GPU without the cost of launching: a step is captured once and replayed.

A small network's step is hundreds of tiny kernels, and launching them from Python takes longer
than running them. Here the whole step (gathering the batch, forward, backward, group lasso,
update) is captured as one CUDA graph for each sub-model shape and batch size; a round is then a
series of replays that read their batches from a table on the GPU. The sub-model lives on between
rounds, so a new graph is needed only after a pruning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training.augment import crop_and_flip
from adaptcl.training.lasso import GroupLasso
from adaptcl.training.recipe import Recipe
from adaptcl.training.trainer import PlainTrainer, sgd
from adaptcl.units import Kept, State, UnitMap, submodel

_log = logging.getLogger(__name__)
_CAPTURING = threading.Lock()
"""One capture at a time: memory that another thread frees meanwhile would end up in the graph."""
_WARM_UP = 3
"""Steps before a capture, in which libraries choose their kernels."""


class CapturedTrainer:
    """One worker's trainer on a GPU; falls back to the plain loop where capture is impossible."""

    def __init__(
        self, model: nn.Module, units: UnitMap, samples: Samples, *, half: bool = False
    ) -> None:
        self._model = model
        self._units = units
        self._samples = samples
        self._half = half
        self._plain = PlainTrainer(model, units, samples)
        self._can_capture = True
        self._kept: bytes | None = None
        self._bench: _Bench | None = None
        self._stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            samples.labels.device
        )

    def load(self, kept: Kept, state: State) -> nn.Module:
        """The sub-model, in the place where it was last round if its units are the same."""
        key = kept.numpy().tobytes()
        if self._bench is None or key != self._kept:
            model = submodel(self._model, self._units, kept, state)
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._kept = key
            self._bench = _Bench(model, self._units, kept, self._samples, self._half)
            return model
        with torch.no_grad():
            for name, tensor in self._bench.model.state_dict().items():
                tensor.copy_(state[name])
        return self._bench.model

    def run(
        self,
        model: nn.Module,
        kept: Kept,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
    ) -> Tensor:
        """Replay the step for each batch."""
        assert self._bench is not None
        assert model is self._bench.model
        if self._can_capture:
            stream = self._stream
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    losses = self._bench.run(batches, moves, recipe, lasso)
                stream.synchronize()
                return losses
            except _CannotCaptureError as error:
                _log.warning(
                    "Steps of this model cannot be captured (%s); going on without.", error
                )
                self._can_capture = False
        return self._plain.run(model, kept, batches, moves, recipe, lasso)


class _CannotCaptureError(Exception):
    pass


class _Bench:
    """A sub-model with its optimizer and its captured steps."""

    def __init__(
        self, model: nn.Module, units: UnitMap, kept: Kept, samples: Samples, half: bool
    ) -> None:
        self.model = model
        self._penalty = GroupLasso(model, units, kept)
        self._samples = samples
        self._half = half
        self._lasso = torch.zeros((), device=samples.labels.device)
        self._recipe: Recipe | None = None
        self._optimizer: torch.optim.SGD | None = None
        self._steps: dict[int, _Step] = {}
        """By batch size: the last batch of an epoch is a smaller one."""

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
    ) -> Tensor:
        self.model.train()
        self._lasso.fill_(lasso)
        if recipe != self._recipe or self._optimizer is None:
            self._recipe, self._optimizer = recipe, sgd(self.model, recipe)
            self._steps.clear()
        numbers: dict[int, list[int]] = {}
        for number, indexes in enumerate(batches):
            numbers.setdefault(len(indexes), []).append(number)
        for size, mine in numbers.items():
            if size not in self._steps or self._steps[size].capacity < len(mine):
                self._steps[size] = self._captured(size, len(mine), recipe)
            self._steps[size].fill(
                [batches[n] for n in mine], [moves[n] for n in mine] if moves else None
            )
        for state in self._optimizer.state.values():
            state["momentum_buffer"].zero_()
        for indexes in batches:
            self._steps[len(indexes)].graph.replay()
        losses = torch.zeros(len(batches), device=self._lasso.device)
        for size, mine in numbers.items():
            losses[torch.tensor(mine)] = self._steps[size].losses[: len(mine)]
        return losses

    def _captured(self, size: int, capacity: int, recipe: Recipe) -> _Step:
        """Capture the step for one batch size, leaving the model as it was."""
        assert self._optimizer is not None
        step = _Step(size, capacity, self._lasso.device)
        before = [t.clone() for t in self.model.state_dict().values()]
        with _CAPTURING:
            try:
                for _ in range(_WARM_UP):
                    self._do(step, recipe)
                torch.cuda.current_stream().synchronize()
                self._optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(
                    step.graph,
                    stream=torch.cuda.current_stream(),
                    capture_error_mode="thread_local",
                ):
                    self._do(step, recipe)
            except (RuntimeError, torch.AcceleratorError) as error:
                raise _CannotCaptureError(str(error).splitlines()[0]) from error
            finally:
                with torch.no_grad():
                    for tensor, value in zip(self.model.state_dict().values(), before, strict=True):
                        tensor.copy_(value)
        return step

    def _do(self, step: _Step, recipe: Recipe) -> None:
        """One step of SGD on the batch that the step's counter points at."""
        assert self._optimizer is not None
        inputs, labels = self._samples.batch(step.indexes.index_select(0, step.counter)[0])
        if recipe.augmentation:
            inputs = crop_and_flip(inputs, step.moves.index_select(0, step.counter)[0])
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        # The cache would keep casts of weights from before the capture.
        with torch.autocast("cuda", torch.bfloat16, enabled=self._half, cache_enabled=False):
            loss = F.cross_entropy(self.model(inputs), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe.strength > 0:
            self._penalty.add_gradient(self._lasso)
        self._optimizer.step()
        step.losses.index_copy_(0, step.counter, loss.detach().view(1))
        step.counter += 1


class _Step:
    """A captured step and the table of batches that its replays read."""

    def __init__(self, size: int, capacity: int, device: torch.device) -> None:
        self.capacity = max(capacity, _WARM_UP + 1)
        self.graph = torch.cuda.CUDAGraph()
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.indexes = torch.zeros(self.capacity, size, dtype=torch.long, device=device)
        self.moves = torch.zeros(self.capacity, 3, size, dtype=torch.long, device=device)
        self.losses = torch.zeros(self.capacity, device=device)

    def fill(self, batches: Sequence[Tensor], moves: Sequence[Tensor] | None) -> None:
        """Put a round's batches into the table, and the counter at its beginning."""
        self.counter.zero_()
        self.indexes[: len(batches)].copy_(torch.stack(list(batches)))
        if moves is not None:
            self.moves[: len(moves)].copy_(torch.stack(list(moves)))
