"""Reach: what a forward pass uses, and whether the values of its input decide that.

A mixture of experts runs only those experts that its router chooses for the example. The pass says
nothing about the others: which units they read, and which they write. So tracing takes more samples
until all are reached, and pins whatever the rest could meet.

Of `if x.mean() > 0:` an example takes one side. So the pass is repeated with the answer
reversed. If a number leaves the tensors (`x.mean().item()`), nobody can tell what Python does with
it, and whatever the module holds is pinned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.units.tensors import OperationMode, Tensors, each_tensor, operation_name, tensors_in
from adaptcl.units.tracing.flow import ByTensor, Flow, OperationCall

_BY_VALUES = "argwhere bincount masked_select nonzero unique unique_consecutive"
_SHAPED_BY_VALUES = frozenset(_BY_VALUES.split())
"""Operations whose result has a shape that depends on values."""

_DECISIONS = frozenset({"bool", "is_nonzero", "equal", "allclose"})
"""Operations by which Python asks a tensor for a yes or no."""
_NUMBERS = frozenset({"item", "float", "tolist"})
"""Operations by which a number leaves the tensors."""

_ON_THE_WAY = ("__torch_function__", "on_operation", "note")
"""Functions between a decision and whoever looks for its place."""
_HERE, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)

Branch = tuple[str, int]
"""The file and the line of a decision."""

Pin = Callable[[Tensor, str], None]
"""Pins an activation, for a reason."""


class ReachObserver:
    """Notes the parameters that a forward pass uses, and pins what it might use otherwise."""

    def __init__(
        self,
        flow: Flow,
        pin: Pin,
        unreached: Mapping[str, str],
        sample: Tensors,
    ) -> None:
        """`unreached` are reasons for pinning by module: one that runs, but leaves a parameter
        inside unused. `sample` is the input of the model."""
        self.branches: dict[Branch, int] = {}
        """How often Python asked, by the place of a decision on values of the input."""
        self.escaped: dict[str, str] = {}
        """Modules in which a number leaves the tensors, each with that as the reason to pin."""
        self._from_input: ByTensor[bool] = WeakTensorKeyDictionary()
        for tensor in each_tensor(sample):
            self._from_input[tensor] = True
        self.used: set[str] = set()
        self.ran: set[str] = set()
        self.steered = False
        """Whether values decide what the pass does."""
        self._flow = flow
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

    def note(self, call: OperationCall, passed: bool) -> None:
        operands, outputs = call.operands, call.outputs
        self.ran.update(self._flow.running)
        self.used.update(map(self._flow.name, filter(self._flow.is_state, operands)))
        self.steered |= not outputs or _is_shaped_by_values(call)
        if any(each in self._from_input for each in operands):
            for each in outputs:
                self._from_input[each] = True
            if call.name in _DECISIONS and isinstance(call.out, bool):
                if (place := _asked_at()) is not None:
                    self.branches[place] = self.branches.get(place, 0) + 1
            elif call.name in _NUMBERS and not outputs and operands[0].is_floating_point():
                self.escaped[self._flow.module] = (
                    f"Python may decide by a number from {call.name}()"
                )
        self.give(self._flow.module, outputs)

    def give(self, module: str, held: Any) -> None:
        """Note what a module holds while it runs, and could give to a part that is not reached."""
        if module in self._unreached:
            for tensor in tensors_in(held):
                self._pin(tensor, self._unreached[module])


class OtherSide(OperationMode):
    """Reverses the first answers to one decision, as many as were given before."""

    def __init__(self, place: Branch, times: int) -> None:
        super().__init__()
        self._place = place
        self._left = times

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        if not isinstance(answer, bool) or operation_name(func) not in _DECISIONS:
            return answer
        if not self._left or _asked_at() != self._place:
            return answer
        self._left -= 1
        return not answer


def _asked_at() -> Branch | None:
    """The line of the model that asks a tensor for a yes or no; None if PyTorch or a rule asks."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name in _ON_THE_WAY:
        frame = frame.f_back
    file = frame.f_code.co_filename
    return None if file.startswith((_HERE, _TORCH)) else (file, frame.f_lineno)


def _is_shaped_by_values(call: OperationCall) -> bool:
    if call.name in _SHAPED_BY_VALUES:
        return True
    if call.name == "where":
        return len(call.args) + len(call.kwargs) == 1
    flags = (torch.bool, torch.uint8)
    return call.name == "getitem" and any(each.dtype in flags for each in tensors_in(call.args[1:]))
