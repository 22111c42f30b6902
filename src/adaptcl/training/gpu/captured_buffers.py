"""The memory of a GPU on which steps are captured, and how it is given back.

Every graph has memory of its own. PyTorch keeps it when the graph is gone, gives it to no later
capture, and lets other processes have none of it; nor may it ask for it back while a capture is
under way. An AdaptCL run, which captures anew after every pruning, would fill a GPU with what
nobody uses and then fail in the middle of a capture, from which CUDA does not recover well. So room
is made before a capture, and whatever a run has left is given back at its end.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adaptcl.units import State

CAPTURING = threading.Lock()
"""One capture at a time: memory that another thread frees meanwhile would end up in the graph."""
_ROOM = 0.25
"""Of the memory, what must be free for a capture."""


def is_short(device: torch.device) -> bool:
    """Whether there is too little free memory to capture without making room."""
    free, total = torch.cuda.mem_get_info(device)
    return free < _ROOM * total


def give_back() -> None:
    """Give the system all memory that PyTorch keeps and nobody uses."""
    gc.collect()  # a captured model and its steps refer to each other
    with CAPTURING:
        torch.cuda.empty_cache()


# The table that the captured steps of a sub-model read their batches from.
#
# A captured step takes no arguments: it does again what it did when it was captured. So all
# batches of a round are put into a table on the GPU beforehand, in one copy, and each step takes
# the row that a counter points at, writes its loss beside it and moves the counter on.


class Table:
    """Rows of sample numbers, each with the moves of its images where they are augmented."""

    def __init__(self, capacity: int, width: int, moves: bool, device: torch.device) -> None:
        """Room for that many batches of up to `width` samples."""
        self.rows = torch.zeros(capacity, 4 if moves else 1, width, dtype=torch.long)
        self.rows = self.rows.to(device)
        self.noted = torch.zeros(capacity, device=device)
        """The losses of the steps."""
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        """The row that is due."""

    def holds(self, count: int, width: int) -> bool:
        """Whether there is room for that many batches of that many samples."""
        return count <= self.rows.shape[0] and width <= self.rows.shape[2]

    def fill(self, batches: Sequence[Tensor], moves: Sequence[Tensor] | None, begin: int) -> None:
        """Put in a round's batches, whose samples are counted from `begin` on."""
        rows = torch.zeros(len(batches), *self.rows.shape[1:], dtype=torch.long)
        samples = rows[:, 0]
        _put(batches, samples)
        samples.add_(begin)
        if moves is not None:
            _put(moves, rows[:, 1:])
        # The host's memory is read before this returns; it only does not wait for the GPU.
        self.rows[: len(batches)].copy_(rows, non_blocking=True)
        self.rewind()

    def rewind(self) -> None:
        """The next step takes the first row."""
        self.counter.zero_()

    def row(self, size: int) -> tuple[Tensor, Tensor]:
        """The samples of the batch that is due, which has that many, and their moves."""
        row = self.rows.index_select(0, self.counter)[0, :, :size]
        return row[0], row[1:]

    def note(self, loss: Tensor) -> None:
        """The loss of the batch that is due."""
        self.noted.index_copy_(0, self.counter, loss.view(1))

    def move_on(self) -> None:
        """The step is done; the next batch is due."""
        self.counter += 1

    def losses(self, count: int) -> Tensor:
        """Those of the first steps."""
        return self.noted[:count].clone()


def _put(parts: Sequence[Tensor], rows: Tensor) -> None:
    """Each part at the beginning of its row."""
    lengths = {part.shape[-1] for part in parts}
    if len(lengths) == 1:
        torch.stack(list(parts), out=rows[..., : lengths.pop()])
    else:
        for row, part in zip(rows, parts, strict=True):
            row[..., : part.shape[-1]] = part


# The tensors of a captured sub-model: filled in before a task, copied out after it.
#
# A task of a few steps is over in a millisecond, so the modules are gone through once and not for
# every task, and tensors are copied many at a time. A GPU can do that for tensors of one type
# that have the layout of what they are copied from; a filter, whose channels are last here, has
# not.


class Tensors:
    """The tensors of a model as long as they lie where they are."""

    def __init__(self, model: nn.Module) -> None:
        self._by_name: State = model.state_dict()
        alike: dict[tuple[torch.dtype, bool], list[str]] = {}
        for name, tensor in self._by_name.items():
            # Not `is_contiguous`: of a filter of one pixel it is true of both layouts.
            usual = torch.empty(tensor.shape, device="meta").stride()
            alike.setdefault((tensor.dtype, tensor.stride() == usual), []).append(name)
        self._together = list(alike.values())

    def load(self, state: State) -> None:
        """Take on the values of a state of these names and shapes."""
        self._copy(state, self._by_name)

    def copied(self) -> State:
        """Copies of all of them, in the usual layout."""
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
