"""A sub-model on a GPU with its captured training steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaptcl.data import Samples
from adaptcl.training.batches import crop_and_flip
from adaptcl.training.gpu.captured_buffers import CAPTURING, BatchTable, ModelTensors
from adaptcl.training.gpu.slices import TwoOwnersError
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.task import Recipe
from adaptcl.units import Kept, State, UnitMap, kept_key
from adaptcl.units.tensors import Tensors

try:
    from adaptcl.training.gpu.activations import halve, halves
    from adaptcl.training.gpu.batch_and_loss import batch, batch_fits, loss_fits, loss_gradient
    from adaptcl.training.gpu.batch_norm import batch_norm, fits
    from adaptcl.training.gpu.batch_norm_pool import batch_norm_pool
    from adaptcl.training.gpu.convolution import convolve
    from adaptcl.training.gpu.convolution import fits as convolves
    from adaptcl.training.gpu.descent import Descent, Gradients
    from adaptcl.training.gpu.shortcuts import OperationRecorder, Operations, Shortcuts, Shortened
except ImportError:  # Triton comes with PyTorch for GPUs on most systems, not on all
    _HAS_TRITON = False
else:
    _HAS_TRITON = True

_WARM_UP = 1  # steps before a capture, in which libraries choose kernels and ours are compiled
_SAME_LOSS = 1e-6
"""Relative tolerance between two losses of the same outputs: on a GPU, sums have no fixed order."""


class CannotCaptureError(Exception):
    """Raised with the reason why a model's steps cannot be captured."""


class CapturedModel:
    """A sub-model, its parameters in the form in which they train, and its steps by batch size."""

    def __init__(
        self,
        model: nn.Module,
        units: UnitMap,
        kept: Kept,
        samples: Samples,
        *,
        half: bool,
        objective: Objective = CLASSIFICATION,
    ) -> None:
        _refuse(model)
        self.model = model
        self.shape = kept_key(kept)
        self.last_worker = -1
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dim() == 4:
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
        self._units = units
        self._kept = kept
        self._samples = samples
        self._half = half
        self._objective = objective
        self._device = samples.device
        self._lambda = torch.zeros((), device=self._device)
        self._rate = torch.zeros((), device=self._device)
        """The learning rate, which may differ from round to round."""
        self._recipe: Recipe | None = None
        self._descent: Descent | None = None
        self._shortcuts: Shortcuts | None = None
        self._pool: Any = None
        self._table: BatchTable | None = None
        self._steps: dict[int, _Step] = {}  # by batch size: the last batch of an epoch is smaller
        self._tensors = ModelTensors(model)
        # Each model has its own stream. A graph remembers cuBLAS's workspace, which belongs to the
        # stream of the capture, and steps that run at the same time must not share one. PyTorch
        # deals out its 32 streams in turn, so only models that are long unused share one.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            self._device
        )

    def load(self, state: State) -> None:
        self._tensors.load(state)

    def state(self) -> State:
        """Contiguous copies of its tensors."""
        return self._tensors.copied()

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        begin: int,
        recipe: Recipe,
        lasso_lambda: float,
        rate_factor: float = 1.0,
    ) -> Tensor:
        """Take one step of SGD on each batch, with no momentum at first; the losses.

        The worker's samples begin at number `begin`.
        """
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(stream):
                rate = recipe.learning_rate * rate_factor
                return self._run(batches, moves, begin, recipe, lasso_lambda, rate)
        finally:
            # Making the common stream wait for this one would hold up the other threads.
            stream.synchronize()

    def _run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        begin: int,
        recipe: Recipe,
        lasso_lambda: float,
        rate: float,
    ) -> Tensor:
        sizes = [len(indexes) for indexes in batches]
        table, descent = self._prepared(sizes, replace(recipe, learning_rate=1.0))
        table.fill(batches, moves, begin)
        self._lambda.fill_(lasso_lambda)
        self._rate.fill_(rate)
        descent.round()
        descent.rest()
        for size in sizes:
            self._steps[size].graph.replay()
        return table.losses(len(batches))

    def _prepared(self, sizes: Sequence[int], recipe: Recipe) -> tuple[BatchTable, Descent]:
        """What steps on batches of these sizes need; captures only what is missing."""
        if recipe != self._recipe or self._descent is None:
            self._recipe = recipe
            self._descent = self._new_descent(recipe)
            self._tensors = ModelTensors(self.model)
            self._table = None
        # A leftover sample joins the batch before it.
        widest = max(recipe.batch_size + 1, *sizes)
        if self._table is None or not self._table.holds(len(sizes), widest):
            # With room to spare: other workers may have more samples.
            capacity = 1 << max(len(sizes), _WARM_UP + 1).bit_length()
            self._table = BatchTable(capacity, widest, recipe.augmentation, self._device)
            self._steps.clear()
            self._pool = None  # its memory is freed with the last graph that used it
        for size in set(sizes) - self._steps.keys():
            self._steps[size] = self._captured(size, self._table, recipe)
        return self._table, self._descent

    def _new_descent(self, recipe: Recipe) -> Descent:
        try:
            return Descent(self.model, self._units, self._kept, recipe, half=self._half)
        except TwoOwnersError as error:
            raise CannotCaptureError(f"units share the tensor {error}") from None

    def _captured(self, size: int, table: BatchTable, recipe: Recipe) -> _Step:
        """Capture the step for one batch size; the model's values do not change."""
        assert self._descent is not None
        step = _Step(size, table, self._descent.gradients())
        self.model.train()
        tensors = [*self.model.parameters(), *self.model.buffers()]
        before = [tensor.detach().clone() for tensor in tensors]
        table.rewind()
        with CAPTURING:
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
                _free_generator(self._device)
                raise CannotCaptureError(str(error).splitlines()[0]) from error
            finally:
                with torch.no_grad():
                    for tensor, value in zip(tensors, before, strict=True):
                        tensor.copy_(value)
        return step

    def _do(self, step: _Step, recipe: Recipe) -> tuple[Tensor, Tensor]:
        """Take one step of SGD on the batch that the table's counter points at.

        Returns the places of the gradients, which can be set only when a capture is over.
        """
        assert self._descent is not None
        assert self._shortcuts is not None
        inputs, targets = self._batch(step, recipe)
        shortened = Shortened(
            self._shortcuts,
            Operations(batch_norm, fits, batch_norm_pool, halve, halves, convolve, convolves),
            self._counters(),
        )
        with shortened, self._autocast():
            outputs = self._outputs(inputs, targets)
        shortened.finish()
        root, slope = self._loss(step, outputs, targets)
        leaves = self._descent.leaves
        trained = [name for name, leaf in leaves.items() if leaf.requires_grad]
        gradients = torch.autograd.grad(
            root, [leaves[name] for name in trained], slope, allow_unused=True
        )
        by_name = {
            name: None if gradient is None else self._descent.dense(name, gradient)
            for name, gradient in zip(trained, gradients, strict=True)
        }
        left_out = {id(bias) for bias in shortened.without_gradient}
        zero = {name for name, leaf in leaves.items() if id(leaf) in left_out}
        places = self._descent.where([by_name.get(name) for name in leaves], zero)
        if not torch.cuda.is_current_stream_capturing():
            step.gradients.point(*places)
        self._descent.step(step.gradients, self._lambda, self._rate)
        step.table.move_on()
        return places

    @torch.no_grad()
    def _watched(self, step: _Step, recipe: Recipe) -> Shortcuts:
        inputs, targets = self._batch(step, recipe)
        watch = OperationRecorder(fits, halves)
        with watch, self._autocast():
            outputs = self._outputs(inputs, targets)
        if not self._objective.is_ready_made:
            self._refuse_changing_loss(outputs, targets)
        return watch.found()

    def _refuse_changing_loss(self, outputs: Any, targets: Tensors) -> None:
        """A replay repeats the numbers that a custom loss drew, or counted, at the capture."""
        with self._autocast():
            first, second = (self._objective.mean_loss(outputs, targets) for _ in range(2))
        if not torch.allclose(first, second, rtol=_SAME_LOSS, atol=0, equal_nan=True):
            raise CannotCaptureError("the loss changes while outputs and targets stay the same")

    def _batch(self, step: _Step, recipe: Recipe) -> tuple[Tensors, Tensors]:
        table = step.table
        if batch_fits(self._samples, step.size):
            moved = recipe.augmentation
            return batch(self._samples, table.rows, table.counter, step.size, moved=moved)
        indexes, moves = table.row(step.size)
        inputs, targets = self._samples.batch(indexes)
        if recipe.augmentation:
            inputs = crop_and_flip(inputs, moves)
        if isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets

    def _outputs(self, inputs: Tensors, targets: Tensors) -> Any:
        """What the loss gets of the model with the weights that the step reads."""
        assert self._descent is not None
        leaves = self._descent.leaves

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(self.model, leaves, args, kwargs)

        return self._objective.outputs(call, inputs, targets)

    def _loss(self, step: _Step, outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        """Write down the loss; where the backward pass begins, and the gradient there if not 1.

        Cross entropy has a kernel; any other loss is captured as PyTorch computes it.
        """
        table = step.table
        if self._objective.is_classification and loss_fits(outputs):
            return outputs, loss_gradient(outputs, targets, table.noted, table.counter)
        with self._autocast():
            mean = self._objective.mean_loss(outputs, targets)
        table.note(mean.detach().float())
        return mean, None

    def _autocast(self) -> torch.autocast:
        # The cache would keep casts of weights made before the capture.
        return torch.autocast("cuda", torch.bfloat16, enabled=self._half, cache_enabled=False)

    def _counters(self) -> list[Tensor]:
        return [
            buffer
            for name, buffer in self.model.named_buffers()
            if name.endswith("num_batches_tracked")
        ]


class _Step:
    """A captured step for batches of one size, and the places of its gradients."""

    def __init__(self, size: int, table: BatchTable, gradients: Gradients) -> None:
        self.size = size
        self.table = table
        self.gradients = gradients
        self.graph = torch.cuda.CUDAGraph()


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture what this thread launches on its stream into the graph.

    PyTorch's context manager for this waits for the whole GPU and empties its cache, which would
    hold up the other workers.
    """
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()


def _free_generator(device: torch.device) -> None:
    """Free the GPU's generator: a failed capture leaves it bound and unable to draw."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def _refuse(model: nn.Module) -> None:
    if not _HAS_TRITON:
        raise CannotCaptureError("Triton is not installed")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise CannotCaptureError(f"parameter {name!r} is {parameter.dtype}, not float32")
