"""Which candidates for a unit stand or fall together: a union-find over integers.

While a model is traced, every output row of every layer is a candidate of its own. A residual
addition, a depthwise convolution or a shared module then couples candidates; an operation that
does not survive a cut pins them. Candidate 0 is the one that is never cut, so pinning is nothing
but coupling with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

PINNED = 0
"""The candidate that everything which is never cut is coupled with."""


class Coupling:
    """Disjoint sets of candidates; the lowest number of a set stands for all of it."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self.joins = 0
        """How often two sets have become one. Sets are as they were while it is."""

    def fresh(self, count: int) -> Tensor:
        """Make `count` new candidates, coupled with nothing."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def couple(self, some: Tensor, others: Tensor) -> None:
        """Couple two vectors of candidates entry by entry."""
        for one, other in set(zip(some.tolist(), others.tolist(), strict=True)):
            self._join(self._root(one), self._root(other))

    def pin(self, ids: Tensor) -> None:
        """Never cut any of these."""
        for one in set(ids.tolist()):
            self._join(PINNED, self._root(one))

    def roots(self, ids: Tensor) -> list[int]:
        """The number that stands for the set of each candidate."""
        return [self._root(one) for one in ids.tolist()]

    def all_roots(self) -> list[int]:
        """The same for every candidate there is."""
        return [self._root(one) for one in range(len(self._parent))]

    def _join(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        if low != high:
            self._parent[high] = low
            self.joins += 1

    def _root(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one


# Unit candidates flowing through one forward pass, alongside the values.
#
# Every activation that can be cut carries a `Tag`: the one dimension along which it consists of
# units, and the candidate at each index of that dimension. A torch function mode sees every
# operation of the forward pass; a rule by operation (see `rules`) says how tags pass through it.
# An operation without a rule, or whose rule declines, pins whatever reaches it, and a tensor
# without a tag is never cut. So a model that does something unheard of is cut less, not wrongly.


@dataclass(frozen=True)
class Tag:
    """What is known about one activation."""

    ids: Tensor
    """The candidate at each index of `dim`."""
    dim: int
    zero: bool
    """True if the slice of a unit is exactly zero once everything the unit owns is zero."""


@dataclass(frozen=True)
class OperationCall:
    """One operation of the forward pass, after it has run."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def replay(self, swap: Callable[[Tensor], Tensor]) -> Any:
        """Run the operation again on other tensors."""
        kwargs = {name: _swapped(value, swap) for name, value in self.kwargs.items()}
        return self.func(*_swapped(self.args, swap), **kwargs)


Rule = Callable[["Flow", OperationCall], bool]
"""Passes tags through an operation; False if it cannot, and everything is to be pinned."""


class Flow:
    """Everything learnt in one forward pass."""

    def __init__(self, model: nn.Module, batch: int, alike: frozenset[str] = frozenset()) -> None:
        """`alike` are the weights of grouped convolutions all of whose groups lose the same."""
        self.alike = alike
        self.coupling = Coupling()
        self.slots: dict[tuple[str, int], tuple[Tensor, bool]] = {}
        """By tensor and dimension, in forward order: the candidates and whether they own it."""
        self.positions: dict[str, int] = {}
        """By weight: how often each of its elements is multiplied for one sample."""
        self.grouped: set[str] = set()
        """The weights of convolutions in groups of several channels."""
        self._batch = batch
        self._tags: MutableMapping[Tensor, Tag] = WeakTensorKeyDictionary()
        self._parameters = {id(p): name for name, p in reversed(list(model.named_parameters()))}
        self._buffers = {id(b): name for name, b in reversed(list(model.named_buffers()))}

    def tag(self, tensor: Tensor) -> Tag | None:
        """The tag of an activation, or None if it is never cut."""
        return self._tags.get(tensor)

    def put(self, tensor: Tensor, ids: Tensor, dim: int, zero: bool) -> None:
        """Tag an activation. One index alone can never be cut, so it is pinned right away."""
        if len(ids) < 2:
            self.coupling.pin(ids)
            self._tags.pop(tensor, None)
        else:
            assert tensor.shape[dim] == len(ids)
            self._tags[tensor] = Tag(ids, dim, zero)

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether this very tensor is trained."""
        return id(tensor) in self._parameters

    def is_state(self, tensor: Tensor) -> bool:
        """Whether this very tensor belongs to the model: a parameter or a buffer."""
        return id(tensor) in self._parameters or id(tensor) in self._buffers

    def rows(self, weight: Tensor, dim: int, groups: int = 1) -> Tensor:
        """The candidates that own a dimension of a weight; new ones at its first use.

        Those at the same place of several groups are the same.
        """
        key = (self.name(weight), dim)
        if key not in self.slots:
            ids = self.coupling.fresh(weight.shape[dim] // groups).repeat(groups)
            self.slots[key] = (ids, True)
        return self.slots[key][0]

    def claim(self, tensor: Tensor, dim: int, ids: Tensor, *, owned: bool) -> None:
        """A dimension of one of the model's tensors follows these candidates."""
        key = (self.name(tensor), dim)
        if key in self.slots:
            self.coupling.couple(self.slots[key][0], ids)
        else:
            self.slots[key] = (ids, owned)

    def pin(self, tensor: Tensor) -> None:
        """Never cut this activation or this tensor of the model."""
        if (tag := self.tag(tensor)) is not None:
            self.coupling.pin(tag.ids)
            self._tags.pop(tensor, None)
        if self.is_state(tensor):
            for dim, size in enumerate(tensor.shape):
                self.claim(tensor, dim, torch.full((size,), PINNED), owned=False)

    def count_work(self, weight: Tensor, multiplied: int) -> None:
        """Each element of a weight was multiplied this many times for the whole batch."""
        name = self.name(weight)
        self.positions[name] = self.positions.get(name, 0) + multiplied // self._batch

    def name(self, tensor: Tensor) -> str:
        """The first name of a tensor of the model."""
        return self._parameters.get(id(tensor)) or self._buffers[id(tensor)]


class FlowMode(TorchFunctionMode):
    """Shows every operation of a forward pass to its rule."""

    def __init__(self, flow: Flow, rules: Mapping[str, Rule], harmless: frozenset[str]) -> None:
        super().__init__()
        self._flow = flow
        self._rules = rules
        self._harmless = harmless

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = operation_name(func)
        if name in self._harmless:
            return out
        reached = [t for t in tensors_in((args, kwargs)) if self._concerns(t)]
        if reached and not self._passes(OperationCall(name, func, args, kwargs, out)):
            for tensor in [*reached, *tensors_in(out)]:
                self._flow.pin(tensor)
        return out

    def _concerns(self, tensor: Tensor) -> bool:
        return self._flow.tag(tensor) is not None or self._flow.is_state(tensor)

    def _passes(self, call: OperationCall) -> bool:
        rule = self._rules.get(call.name)
        if rule is None or "out" in call.kwargs:
            return False
        try:
            return rule(self._flow, call)
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
            return False  # called in a way the rule does not know, which is what pinning is for


def operation_name(func: Callable[..., Any]) -> str:
    """One name for all spellings of an operation: `x += y`, `x.add_(y)`, `torch.add(x, y)`."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.strip("_")
    return _SPELLINGS.get(name, name)


_SPELLINGS = {
    **{f"{kind}{name}": name for kind in "ir" for name in ("add", "mul", "pow")},
    **dict.fromkeys(("isub", "subtract"), "sub"),
    **dict.fromkeys(("truediv", "itruediv", "rtruediv", "rdiv", "true_divide"), "div"),
    "multiply": "mul",
}


def _swapped(value: Any, swap: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors, also in the lists that operations such as `cat` take."""
    if isinstance(value, Tensor):
        return swap(value)
    if type(value) in (tuple, list):
        return type(value)(_swapped(item, swap) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in any nesting of tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
