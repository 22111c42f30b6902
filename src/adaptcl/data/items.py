"""Inputs that are read whenever a batch needs them, not kept in memory.

They either fill more of the memory than data should, or differ each time they are read, such as
images with random crops. The latter draw from a seed that the numbers of a batch's samples make.
Every epoch of every worker has its own order, drawn from the run's seed, so every epoch sees other
crops, and the same run always the same ones, whichever thread is faster and after a resumption
too. A test goes through its samples in one order, so it always sees the same crops.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adaptcl.seeds import process_generators_seeded
from adaptcl.units.tensors import Tensors, each_tensor, mapped

Read: TypeAlias = Callable[[list[int]], tuple[Tensors, Any]]
"""Reads the inputs of the samples with these numbers, and their targets, or None without any."""

CHUNK = 256  # samples that are read together when a data set is gone through
_LEAST_PART = 4  # data may take this part of the memory: dealing it to workers copies it


@dataclass(frozen=True, eq=False)
class Items:
    """The inputs of N samples, and how to read them."""

    read: Read
    rows: Tensor  # the numbers of the samples in the data set they are read from
    example: Tensors
    """Inputs of one or two samples. Of whole numbers these are the lowest and the highest."""
    varies: bool = False  # whether a sample differs each time it is read
    checksum: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indexes: Tensor) -> Items:
        return replace(self, rows=self.rows[indexes.cpu()])

    def batch(self, indexes: Tensor) -> tuple[Tensors, Any]:
        rows = self.rows[indexes.cpu()]
        if not self.varies:
            return self.read(rows.tolist())
        with process_generators_seeded(zlib.crc32(rows.numpy().data)):
            return self.read(rows.tolist())

    def chunks(self) -> Iterator[tuple[Tensors, Any]]:
        """Go through all samples in their order."""
        for begin in range(0, len(self), CHUNK):
            yield self.batch(torch.arange(begin, min(begin + CHUNK, len(self))))

    def noting(self, inputs: Tensors) -> Items:
        """These items, with the next chunk counted in the checksum and in the example."""
        parts = [self.example, inputs] if each_tensor(self.example) else [inputs]
        whole = any(each.dtype == torch.int64 for each in each_tensor(inputs))
        example = extremes(parts) if whole else mapped(lambda each: each[:2].clone(), parts[0])
        return replace(self, example=example, checksum=checksum_of(inputs, self.checksum))


def fits_in_memory(size: int) -> bool:
    """Whether data of so many bytes should be kept in memory."""
    return size <= memory() // _LEAST_PART


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def size_of(tensors: Tensors) -> int:
    return sum(each.numel() * each.element_size() for each in each_tensor(tensors))


def checksum_of(tensors: Tensors, before: int = 0) -> int:
    """A checksum that identifies data without storing it."""
    for tensor in each_tensor(tensors):
        bytes_ = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data
        before = zlib.crc32(bytes_, before)
    return before


def extremes(parts: Sequence[Tensors]) -> Tensors:
    """For every tensor of the inputs its samples with the lowest and the highest number."""
    columns = iter(list(zip(*map(each_tensor, parts), strict=True)))

    def ends(_: Tensor) -> Tensor:
        column = next(columns)
        low = min(column, key=lambda each: each.min())
        high = max(column, key=lambda each: each.max())
        lowest = low.reshape(len(low), -1).amin(1).argmin()
        highest = high.reshape(len(high), -1).amax(1).argmax()
        return torch.stack([low[int(lowest)].cpu(), high[int(highest)].cpu()])

    return mapped(ends, parts[0])
