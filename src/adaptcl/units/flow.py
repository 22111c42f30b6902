"""Unit candidates that flow through one forward pass, alongside the values.

While a model is traced, every output row of every layer is a *candidate* for a unit. A residual
addition, a depthwise convolution or a shared module couples candidates; an operation that does not
survive a cut pins them. Candidate 0 stands for everything that is never cut, so pinning is coupling
with it.

Every activation that can be cut carries a `Tag`: the dimension along which it consists of units,
and the candidate at each index of that dimension. A tensor without a tag is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

PINNED = 0
"""The candidate that stands for everything that is never cut."""


class Coupling:
    """Sets of coupled candidates (a union-find); the lowest number of a set is its root."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self.joins = 0
        """How often two sets were joined: if it has not changed, neither have the sets."""

    def fresh(self, count: int) -> Tensor:
        """Make `count` new candidates that are not coupled."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def couple(self, some: Tensor, others: Tensor) -> None:
        """Couple two vectors of candidates entry by entry."""
        for one, other in set(zip(some.tolist(), others.tolist(), strict=True)):
            self._join(self._root(one), self._root(other))

    def pin(self, ids: Tensor) -> None:
        for one in set(ids.tolist()):
            self._join(PINNED, self._root(one))

    def roots(self, ids: Tensor) -> list[int]:
        """The root of each of these candidates."""
        return [self._root(one) for one in ids.tolist()]

    def all_roots(self) -> list[int]:
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


@dataclass(frozen=True)
class Tag:
    """What is known about one activation."""

    ids: Tensor
    """The candidate at each index of `dim`."""
    dim: int
    zero: bool
    """Whether the slice of a unit is exactly zero if everything that the unit owns is zero."""


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
        """Run the operation again with other tensors."""
        kwargs = {name: _swapped(value, swap) for name, value in self.kwargs.items()}
        return self.func(*_swapped(self.args, swap), **kwargs)


Rule = Callable[["Flow", OperationCall], bool]
"""Passes tags through an operation; returns False if it cannot, and then everything is pinned."""


class Flow:
    """Everything that one forward pass reveals about units."""

    def __init__(self, model: nn.Module, batch: int, alike: frozenset[str] = frozenset()) -> None:
        """`alike` are the weights of convolutions whose groups all lose the same channels."""
        self.alike = alike
        self.coupling = Coupling()
        self.slots: dict[tuple[str, int], tuple[Tensor, bool]] = {}
        """By tensor and dimension, in forward order: the candidates, and whether they own it."""
        self.positions: dict[str, int] = {}
        """By weight: how often each of its elements is used for one sample."""
        self.grouped: set[str] = set()
        """The weights of convolutions with groups of several channels."""
        self._batch = batch
        self._tags: MutableMapping[Tensor, Tag] = WeakTensorKeyDictionary()
        self._parameters = {id(p): name for name, p in reversed(list(model.named_parameters()))}
        self._buffers = {id(b): name for name, b in reversed(list(model.named_buffers()))}

    def tag(self, tensor: Tensor) -> Tag | None:
        """The tag of an activation, or None if it is never cut."""
        return self._tags.get(tensor)

    def put(self, tensor: Tensor, ids: Tensor, dim: int, zero: bool) -> None:
        """Tag an activation. A single index can never be cut, so it is pinned."""
        if len(ids) < 2:
            self.coupling.pin(ids)
            self._tags.pop(tensor, None)
        else:
            assert tensor.shape[dim] == len(ids)
            self._tags[tensor] = Tag(ids, dim, zero)

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether this tensor itself is a parameter of the model."""
        return id(tensor) in self._parameters

    def is_state(self, tensor: Tensor) -> bool:
        """Whether this tensor itself is a parameter or a buffer of the model."""
        return id(tensor) in self._parameters or id(tensor) in self._buffers

    def rows(self, weight: Tensor, dim: int, groups: int = 1) -> Tensor:
        """The candidates that own a dimension of a weight; its first use creates them.

        Several groups have the same candidates.
        """
        key = (self.name(weight), dim)
        if key not in self.slots:
            ids = self.coupling.fresh(weight.shape[dim] // groups).repeat(groups)
            self.slots[key] = (ids, True)
        return self.slots[key][0]

    def claim(self, tensor: Tensor, dim: int, ids: Tensor, *, owned: bool) -> None:
        """Let a dimension of one of the model's tensors follow these candidates."""
        key = (self.name(tensor), dim)
        if key in self.slots:
            self.coupling.couple(self.slots[key][0], ids)
        else:
            self.slots[key] = (ids, owned)

    def pin(self, tensor: Tensor) -> None:
        """Never cut this activation or tensor of the model."""
        if (tag := self.tag(tensor)) is not None:
            self.coupling.pin(tag.ids)
            self._tags.pop(tensor, None)
        if self.is_state(tensor):
            for dim, size in enumerate(tensor.shape):
                self.claim(tensor, dim, torch.full((size,), PINNED), owned=False)

    def count_work(self, weight: Tensor, multiplied: int) -> None:
        """Note that each element of a weight was used this often for the whole batch."""
        name = self.name(weight)
        self.positions[name] = self.positions.get(name, 0) + multiplied // self._batch

    def name(self, tensor: Tensor) -> str:
        """The first name of a tensor of the model."""
        return self._parameters.get(id(tensor)) or self._buffers[id(tensor)]


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
    """Replace tensors, also in lists such as `cat` takes."""
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
