"""One sub-model on a GPU with its captured steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from adaptcl.data import Samples
from adaptcl.training.augment import crop_and_flip
from adaptcl.training.recipe import Recipe
from adaptcl.units import Kept, State, UnitMap

try:
    from adaptcl.training.fused.batch_norm import batch_norm, fits
    from adaptcl.training.fused.descent import Descent, Gradients
    from adaptcl.training.fused.max_pool import halve, halves
    from adaptcl.training.fused.shortcuts import Operations, Shortcuts, Shortened, Watch
    from adaptcl.training.fused.slices import TwoOwnersError
except ImportError:  # Triton comes with PyTorch for GPUs on most systems, not on all
    _HAS_TRITON = False
else:
    _HAS_TRITON = True

_CAPTURING = threading.Lock()
"""One capture at a time: memory that another thread frees meanwhile would end up in the graph."""
_WARM_UP = 2
"""Steps before a capture, in which libraries choose their kernels."""


class CannotCaptureError(Exception):
    """Raised with the reason why a model's steps cannot be captured."""


class CapturedModel:
    """A sub-model, its parameters as they are trained, and its steps by batch size."""

    def __init__(
        self, model: nn.Module, units: UnitMap, kept: Kept, samples: Samples, *, half: bool
    ) -> None:
        _refuse(model)
        self.model = model
        self.shape = kept.numpy().tobytes()
        self.last_worker = -1
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._units = units
        self._kept = kept
        self._samples = samples
        self._half = half
        self._lasso = torch.zeros((), device=samples.labels.device)
        self._recipe: Recipe | None = None
        self._descent: Descent | None = None
        self._shortcuts: Shortcuts | None = None
        self._pool: Any = None
        self._steps: dict[int, _Step] = {}
        """By batch size: the last batch of an epoch is a smaller one."""
        self._stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            samples.labels.device
        )

    def load(self, state: State) -> None:
        """Take on other tensors of the same shapes."""
        own = self.model.state_dict()
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [state[name] for name in own])

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
    ) -> Tensor:
        """One step of SGD on each batch of indexes, from rest; the losses."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses = self._run(batches, moves, recipe, lasso)
        stream.synchronize()
        return losses

    def _run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        recipe: Recipe,
        lasso: float,
    ) -> Tensor:
        self.model.train()
        self._lasso.fill_(lasso)
        if recipe != self._recipe or self._descent is None:
            self._recipe = recipe
            self._steps.clear()
            try:
                self._descent = Descent(
                    self.model, self._units, self._kept, recipe, half=self._half
                )
            except TwoOwnersError as error:
                raise CannotCaptureError(f"units share the tensor {error}") from None
        numbers: dict[int, list[int]] = {}
        for number, indexes in enumerate(batches):
            numbers.setdefault(len(indexes), []).append(number)
        for size, mine in numbers.items():
            if size not in self._steps or self._steps[size].capacity < len(mine):
                self._steps[size] = self._captured(size, len(mine), recipe)
            self._steps[size].fill(
                [batches[n] for n in mine], [moves[n] for n in mine] if moves else None
            )
        self._descent.round()
        self._descent.rest()
        for indexes in batches:
            self._steps[len(indexes)].graph.replay()
        losses = torch.zeros(len(batches), device=self._lasso.device)
        for size, mine in numbers.items():
            losses[torch.tensor(mine)] = self._steps[size].losses[: len(mine)]
        return losses

    def _captured(self, size: int, capacity: int, recipe: Recipe) -> _Step:
        """Capture the step for one batch size, leaving the model as it was."""
        assert self._descent is not None
        step = _Step(size, capacity, self._descent.gradients(), self._lasso.device)
        before = [t.clone() for t in self.model.state_dict().values()]
        with _CAPTURING:
            try:
                if self._shortcuts is None:
                    self._shortcuts = self._watched(step, recipe)
                for _ in range(_WARM_UP):
                    self._do(step, recipe)
                torch.cuda.current_stream().synchronize()
                with _capture(step.graph, self._pool):
                    places = self._do(step, recipe)
                # The gradients lie where they will lie in every replay.
                step.gradients.point(*places)
                self._pool = step.graph.pool()
            except (RuntimeError, torch.AcceleratorError) as error:
                _free_generator(self._lasso.device)
                raise CannotCaptureError(str(error).splitlines()[0]) from error
            finally:
                with torch.no_grad():
                    for tensor, value in zip(self.model.state_dict().values(), before, strict=True):
                        tensor.copy_(value)
        return step

    def _do(self, step: _Step, recipe: Recipe) -> tuple[Tensor, Tensor]:
        """One step of SGD on the batch that the step's counter points at.

        Gives the places of the gradients, which a capture can point at only when it is over.
        """
        assert self._descent is not None
        assert self._shortcuts is not None
        inputs, labels = self._batch(step, recipe)
        shortened = Shortened(
            self._shortcuts,
            Operations(batch_norm, halve, halves, self._few_colours),
            self._counters(),
        )
        with shortened, self._autocast():
            loss = self._loss(inputs, labels)
        shortened.finish()
        leaves = self._descent.leaves
        trained = [name for name, leaf in leaves.items() if leaf.requires_grad]
        gradients = torch.autograd.grad(loss, [leaves[name] for name in trained], allow_unused=True)
        by_name = {
            name: None if gradient is None else self._descent.dense(name, gradient)
            for name, gradient in zip(trained, gradients, strict=True)
        }
        left_out = {id(bias) for bias in shortened.without_gradient}
        zero = {name for name, leaf in leaves.items() if id(leaf) in left_out}
        places = self._descent.where([by_name.get(name) for name in leaves], zero)
        if not torch.cuda.is_current_stream_capturing():
            step.gradients.point(*places)
        self._descent.step(step.gradients, self._lasso)
        step.losses.index_copy_(0, step.counter, loss.detach().view(1))
        step.counter += 1
        return places

    @torch.no_grad()
    def _watched(self, step: _Step, recipe: Recipe) -> Shortcuts:
        inputs, labels = self._batch(step, recipe)
        watch = Watch(fits)
        with watch, self._autocast():
            self._loss(inputs, labels)
        return watch.found()

    def _batch(self, step: _Step, recipe: Recipe) -> tuple[Tensor, Tensor]:
        inputs, labels = self._samples.batch(step.indexes.index_select(0, step.counter)[0])
        if recipe.augmentation:
            inputs = crop_and_flip(inputs, step.moves.index_select(0, step.counter)[0])
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, labels

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        assert self._descent is not None
        return F.cross_entropy(functional_call(self.model, self._descent.leaves, (inputs,)), labels)

    def _autocast(self) -> torch.autocast:
        # The cache would keep casts of weights from before the capture.
        return torch.autocast("cuda", torch.bfloat16, enabled=self._half, cache_enabled=False)

    def _few_colours(self, images: Tensor) -> bool:
        return self._half and images.shape[1] % 8 > 0 and not images.requires_grad

    def _counters(self) -> list[Tensor]:
        return [
            buffer
            for name, buffer in self.model.named_buffers()
            if name.endswith("num_batches_tracked")
        ]


class _Step:
    """A captured step, the table of batches that its replays read, and where its gradients lie."""

    def __init__(
        self, size: int, capacity: int, gradients: Gradients, device: torch.device
    ) -> None:
        self.capacity = max(capacity, _WARM_UP + 1)
        self.gradients = gradients
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


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is launched on this thread's stream inside becomes the graph.

    PyTorch's own context for this waits for the whole GPU and empties its cache, which would hold
    up the other workers.
    """
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()


def _free_generator(device: torch.device) -> None:
    """A capture that fails leaves the GPU's generator bound to it, and unable to draw again."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def _refuse(model: nn.Module) -> None:
    if not _HAS_TRITON:
        raise CannotCaptureError("Triton is not installed")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise CannotCaptureError(f"parameter {name!r} is {parameter.dtype}, not float32")
