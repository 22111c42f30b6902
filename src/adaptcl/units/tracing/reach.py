"""Reach: which parameters a forward pass uses, and whether the values of its input decide that.

A mixture of experts runs only those experts that its router chooses for the example. The pass says
nothing about the others: which units they read, and which they write. So tracing takes more samples
until all are reached, and pins whatever the rest could meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.units.tracing.flow import Flow, OperationCall, tensors_in

_BY_VALUES = "argwhere bincount masked_select nonzero unique unique_consecutive"
_SHAPED_BY_VALUES = frozenset(_BY_VALUES.split())
"""Operations whose result has a shape that depends on values."""

Pin = Callable[[Tensor, str], None]
"""Pins an activation, for a reason."""


class ReachObserver:
    """Notes the parameters that a forward pass uses, and pins what it might use otherwise."""

    def __init__(
        self, flow: Flow, running: Sequence[str], pin: Pin, unreached: Mapping[str, str]
    ) -> None:
        """`running` are the modules that are running, the innermost last. `unreached` are reasons
        for pinning by module: one that runs, but leaves a parameter inside unused."""
        self.used: set[str] = set()
        self.ran: set[str] = set()
        self.steered = False
        """Whether values decide what the pass does."""
        self._flow = flow
        self._running = running
        self._pin = pin
        self._unreached = unreached

    def left_out(self, model: nn.Module) -> dict[str, str]:
        """Modules that run and leave out a part with parameters, each with a reason to pin what
        that part may use."""
        found: dict[str, str] = {}
        for name, _ in model.named_parameters():
            if name not in self.used:
                part = name.rpartition(".")[0]
                runs = part
                while runs and runs not in self.ran:
                    runs = runs.rpartition(".")[0]
                found.setdefault(runs, f"no sample reaches {part or name}, which may use them")
        return found

    def before(self, name: str, operands: Sequence[Tensor]) -> None:
        self.ran.update(self._running)
        self.used.update(map(self._flow.name, filter(self._flow.is_state, operands)))

    def after(self, call: OperationCall, passed: bool) -> None:
        outputs = list(tensors_in(call.out))
        self.steered |= not outputs or _is_shaped_by_values(call)
        if self._running:
            self.give(self._running[-1], outputs)

    def give(self, module: str, held: Any) -> None:
        """Note what a module holds while it runs, and could give to a part that is not reached."""
        if module in self._unreached:
            for tensor in tensors_in(held):
                self._pin(tensor, self._unreached[module])


def _is_shaped_by_values(call: OperationCall) -> bool:
    if call.name in _SHAPED_BY_VALUES:
        return True
    if call.name == "where":
        return len(call.args) + len(call.kwargs) == 1
    flags = (torch.bool, torch.uint8)
    return call.name == "getitem" and any(each.dtype in flags for each in tensors_in(call.args[1:]))
