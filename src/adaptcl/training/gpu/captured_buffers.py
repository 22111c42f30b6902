"""The memory that captured steps use: what they read and write, and how it is freed.

A captured step takes no arguments: it repeats what it did when it was captured. So it reads its
batch from a table on the GPU (`BatchTable`), and a task's tensors are copied into the model in
place (`ModelTensors`).

Every graph has its own memory. PyTorch keeps it when the graph is gone, gives it to no later
capture and to no other process, and cannot free it while a capture is under way. An AdaptCL run
captures again after every pruning. It would fill a GPU with unused memory and then fail in the
middle of a capture, from which CUDA does not recover well. So room is made before a capture, and
at its end a run frees what it has left.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adaptcl.units import State

CAPTURING = threading.Lock()
"""Held during a capture: memory that another thread frees meanwhile would end up in the graph."""
_ROOM = 0.25  # the share of the memory that must be free for a capture


def is_short(device: torch.device) -> bool:
    """Whether there is too little free memory to capture without making room."""
    free, total = torch.cuda.mem_get_info(device)
    return free < _ROOM * total


def give_back() -> None:
    """Free all memory that PyTorch keeps and nobody uses."""
    gc.collect()  # a captured model and its steps refer to each other
    with CAPTURING:
        torch.cuda.empty_cache()


class BatchTable:
    """The batches of a round: a row of sample numbers each, with the moves of its images.

    All batches are copied to the GPU at once. Each step takes the row that a counter points at,
    writes its loss beside it and raises the counter.
    """

    def __init__(self, capacity: int, width: int, moves: bool, device: torch.device) -> None:
        """Make room for `capacity` batches of up to `width` samples."""
        self.rows = torch.zeros(capacity, 4 if moves else 1, width, dtype=torch.long)
        self.rows = self.rows.to(device)
        self.noted = torch.zeros(capacity, device=device)  # the losses of the steps
        self.counter = torch.zeros(1, dtype=torch.long, device=device)  # the number of the next row

    def holds(self, count: int, width: int) -> bool:
        return count <= self.rows.shape[0] and width <= self.rows.shape[2]

    def fill(self, batches: Sequence[Tensor], moves: Sequence[Tensor] | None, begin: int) -> None:
        """Write a round's batches; the worker's first sample is number `begin`."""
        rows = torch.zeros(len(batches), *self.rows.shape[1:], dtype=torch.long)
        samples = rows[:, 0]
        _put(batches, samples)
        samples.add_(begin)
        if moves is not None:
            _put(moves, rows[:, 1:])
        # This reads the host's memory before it returns; it only does not wait for the GPU.
        self.rows[: len(batches)].copy_(rows, non_blocking=True)
        self.rewind()

    def rewind(self) -> None:
        """Let the next step take the first row."""
        self.counter.zero_()

    def row(self, size: int) -> tuple[Tensor, Tensor]:
        """The samples of the next batch, which has `size` of them, and their moves."""
        row = self.rows.index_select(0, self.counter)[0, :, :size]
        return row[0], row[1:]

    def note(self, loss: Tensor) -> None:
        self.noted.index_copy_(0, self.counter, loss.view(1))

    def move_on(self) -> None:
        self.counter += 1

    def losses(self, count: int) -> Tensor:
        return self.noted[:count].clone()


def _put(values: Sequence[Tensor], rows: Tensor) -> None:
    """Write each tensor to the beginning of its row."""
    lengths = {each.shape[-1] for each in values}
    if len(lengths) == 1:
        torch.stack(list(values), out=rows[..., : lengths.pop()])
    else:
        for row, each in zip(rows, values, strict=True):
            row[..., : each.shape[-1]] = each


class ModelTensors:
    """The tensors of a captured sub-model: filled before a task, copied out after it.

    A task of a few steps takes a millisecond, so the modules are visited once and not for every
    task, and tensors are copied many at a time. A GPU can do that for tensors of one type whose
    layout is that of their source. Filters are not, because their channels are last here.
    """

    def __init__(self, model: nn.Module) -> None:
        self._by_name: State = model.state_dict()
        alike: dict[tuple[torch.dtype, bool], list[str]] = {}
        for name, tensor in self._by_name.items():
            # Not `is_contiguous`: for a filter of one pixel it is true in both layouts.
            usual = torch.empty(tensor.shape, device="meta").stride()
            alike.setdefault((tensor.dtype, tensor.stride() == usual), []).append(name)
        self._together = list(alike.values())

    def load(self, state: State) -> None:
        self._copy(state, self._by_name)

    def copied(self) -> State:
        """Contiguous copies of all tensors."""
        copies = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor in self._by_name.items()
        }
        self._copy(self._by_name, copies)
        return copies

    @torch.no_grad()
    def _copy(self, source: State, target: State) -> None:
        for names in self._together:
            torch._foreach_copy_([target[n] for n in names], [source[n] for n in names])
