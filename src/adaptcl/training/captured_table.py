"""The table that the captured steps of a sub-model read their batches from.

A captured step takes no arguments: it does again what it did when it was captured. So all batches
of a round are put into a table on the GPU beforehand, in one copy, and each step takes the row
that a counter points at, writes its loss beside it and moves the counter on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
