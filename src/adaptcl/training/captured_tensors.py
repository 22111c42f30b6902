"""The tensors of a captured sub-model: filled in before a task, copied out after it.

A task of a few steps is over in a millisecond, so the modules are gone through once and not for
every task, and tensors are copied many at a time. A GPU can do that for tensors of one type that
have the layout of what they are copied from; a filter, whose channels are last here, has not.
"""

from __future__ import annotations

import torch
from torch import nn

from adaptcl.units import State


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
