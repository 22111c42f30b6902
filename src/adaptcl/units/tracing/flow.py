"""Unit candidates that flow through one forward pass, alongside the values.

Every activation that can be cut carries a `Tag`: the dimension along which it consists of units,
and the candidate at each index of that dimension. A tensor without a tag is never cut. While it is
open which of several dimensions that is, the tag waits in `rules/choices.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.units.tensors import first_output, tensors_in
from adaptcl.units.tracing.coupling import LONE, PINNED, Coupling, joined_by

Value = TypeVar("Value")
ByTensor: TypeAlias = MutableMapping[Tensor, Value]
"""What is known by tensor, as long as the tensor lives."""


@dataclass(frozen=True)
class Tag:
    """What is known about one activation."""

    ids: Tensor
    """The candidate at each index of `dim`."""
    dim: int
    zero: bool
    """Whether the slice of a unit is exactly zero if everything that the unit owns is zero."""


@dataclass(frozen=True)
class OpenTag:
    """What is known about an activation while a choice is open: its tag by option."""

    choice: Any
    tags: Mapping[int, Tag]


@dataclass(frozen=True)
class OperationCall:
    """One operation of the forward pass, after it has run."""

    name: str
    place: str
    """Its name with that of the module that runs it, such as `add in block`."""
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any

    @cached_property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors among its arguments."""
        return tuple(tensors_in((self.args, self.kwargs)))

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.out))

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def replay(self, swap: Callable[[Tensor], Tensor]) -> Any:
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
        self.owned_by_input: set[tuple[str, int]] = set()
        """The dimensions that read units which are not zero when all else that they own is zero: a
        unit behind a sigmoid owns the columns that read it, too."""
        self.positions: dict[str, float] = {}
        """By weight: how often each of its elements is used for one sample, on average."""
        self.uses: Counter[str] = Counter()
        """By weight, how many layers use it."""
        self.entered: set[str] = set()
        """Parameters and buffers that operations without weights use, and that units own."""
        self.grouped: set[str] = set()
        """The weights of convolutions with groups of several channels."""
        self.averages: dict[str, tuple[int, Tensor]] = {}
        """By module that averages over units: their dimension, from the end, and the candidates."""
        self.outputs: dict[str, tuple[int, Tensor] | None] = {}
        """By module whose output has candidates: their dimension, from the end, and which they are;
        None if that is not the same in all its calls."""
        self.running: Sequence[str] = ()
        """The names of the modules that are running, the innermost last."""
        self.heads: list[Tensor] = []
        """Candidates that attention uses as heads."""
        self.unknown: dict[str, str] = {}
        """By weight, why the layer that uses it has no units."""
        self._batch = batch
        self._tags: ByTensor[Tag] = WeakTensorKeyDictionary()
        self.opened: ByTensor[OpenTag] = WeakTensorKeyDictionary()
        """The tags of an activation whose dimension of units is open."""
        self.mixed: ByTensor[Tensor] = WeakTensorKeyDictionary()
        """Candidates whose values are mixed in an activation: any use of it pins them."""
        self._pinned: ByTensor[int] = WeakTensorKeyDictionary()
        """By activation that is never cut, a pinned candidate because of which that is so."""
        self._views: ByTensor[tuple[Tensor, tuple[int, ...]]] = WeakTensorKeyDictionary()
        """By view of a parameter: the parameter, and its dimension for each of the view."""
        self._zeros: ByTensor[int] = WeakTensorKeyDictionary()
        """By tensor that was made of zeros, its version then."""
        self._parameters = {
            id(each): name for name, each in reversed(list(model.named_parameters()))
        }
        self._buffers = {id(each): name for name, each in reversed(list(model.named_buffers()))}
        self._single = {name for name, each in model.named_modules() if not any(each.children())}

    @property
    def module(self) -> str:
        """The name of the innermost running module; empty for the model itself."""
        return self.running[-1] if self.running else ""

    def place_of(self, operation: str) -> str:
        """An operation in words, with the module that runs it."""
        return f"{operation} in {self.module}" if self.module else operation

    def tag(self, tensor: Tensor) -> Tag | None:
        """The tag of an activation; None if it is never cut, or while a choice is open."""
        return self._tags.get(tensor)

    def live_tag(self, tensor: Tensor) -> Tag | None:
        """The tag of an activation of which something can be cut, as far as is known."""
        tag = self.tag(tensor)
        return None if tag is None or self.coupling.all_pinned(tag.ids) else tag

    def put(self, tensor: Tensor, ids: Tensor, dim: int, zero: bool) -> None:
        """Tag an activation. A single index can never be cut, so it is pinned."""
        self.opened.pop(tensor, None)
        if len(ids) < 2:
            self.coupling.pin(ids, LONE)
            self._tags.pop(tensor, None)
        else:
            assert tensor.shape[dim] == len(ids)
            self._tags[tensor] = Tag(ids, dim, zero)

    def open(self, tensor: Tensor, tags: OpenTag) -> None:
        """Leave open for now which of these tags an activation has."""
        self._tags.pop(tensor, None)
        self.opened[tensor] = tags

    def settle(self, tensor: Tensor) -> None:
        """Give an activation its usual tag if that is open."""
        if (opened := self.opened.get(tensor)) is not None:
            opened.choice.settle(self, opened.choice.default)

    def settle_all(self) -> None:
        for tensor in list(self.opened):
            self.settle(tensor)

    def note_zeros(self, tensor: Tensor) -> None:
        self._zeros[tensor] = tensor._version

    def is_zeros(self, tensor: Tensor, writes: int = 0) -> bool:
        """Whether a tensor was made of zeros, before these many last writes to it."""
        return self._zeros.get(tensor) == tensor._version - writes

    def explain(self, weights: Sequence[Tensor], why: str) -> None:
        """Say why the layer with these weights has no units."""
        for weight in filter(self.is_parameter, weights):
            self.unknown[self.name(weight)] = why

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether this tensor is a parameter of the model, perhaps with its dimensions moved."""
        return id(tensor) in self._parameters or tensor in self._views

    def is_state(self, tensor: Tensor) -> bool:
        """Whether this tensor is a parameter or a buffer of the model."""
        return self.is_parameter(tensor) or id(tensor) in self._buffers

    def concerns(self, tensor: Tensor) -> bool:
        return (
            tensor in self._tags
            or tensor in self.opened
            or tensor in self.mixed
            or self.is_state(tensor)
        )

    def view(self, tensor: Tensor, parameter: Tensor, dims: Sequence[int]) -> None:
        """Note that a tensor is this parameter, with its dimensions in this order."""
        base, order = self._views.get(parameter, (parameter, tuple(range(parameter.dim()))))
        if tensor is not base:
            self._views[tensor] = (base, tuple(order[dim] for dim in dims))

    def rows(self, weight: Tensor, dim: int, groups: int = 1) -> Tensor:
        """The candidates that own a dimension of a weight; its first use creates them.

        Several groups have the same candidates.
        """
        key = self._key(weight, dim)
        if key not in self.slots:
            ids = self.coupling.fresh(weight.shape[dim] // groups).repeat(groups)
            self.slots[key] = (ids, True)
        return self.slots[key][0]

    def claim(self, tensor: Tensor, dim: int, ids: Tensor, *, owned: bool) -> None:
        """Let a dimension of one of the model's tensors follow these candidates."""
        key = self._key(tensor, dim)
        if key in self.slots:
            self.coupling.couple(self.slots[key][0], ids, self._second_use(tensor))
        else:
            self.slots[key] = (ids, owned)

    def _second_use(self, tensor: Tensor) -> str:
        return f"{self.coupling.place}, which uses {self.name(tensor)} again"

    def read(self, weight: Tensor, dim: int, tag: Tag) -> None:
        """Let a dimension of a weight follow the units that it is multiplied with and summed over.

        What is zero there adds nothing to the sum, like what is cut. Units that are something else
        own these columns: a cut equals zeroing both.
        """
        self.claim(weight, dim, tag.ids, owned=False)
        if not tag.zero:
            self.owned_by_input.add(self._key(weight, dim))

    def own(self, tensor: Tensor, dim: int, ids: Tensor) -> None:
        """Let one dimension of one of the model's tensors belong to candidates; cut no other."""
        self.claim(tensor, dim, ids, owned=True)
        for other in range(tensor.dim()):
            if other != dim and tensor.shape[other] > 1:
                self.fix(tensor, other)
        self.entered.add(self.name(tensor))

    def average(self, tensor: Tensor) -> bool:
        """Let the running module average over the units of an activation, those cut as zeros.

        That needs a module that does nothing else in this dimension, and units that are zero.
        """
        tag, module = self.tag(tensor), self.module
        if tag is None or not tag.zero or module not in self._single:
            return False
        dim, ids = self.averages.setdefault(module, (tag.dim - tensor.dim(), tag.ids))
        if dim != tag.dim - tensor.dim() or len(ids) != len(tag.ids):
            return False
        self.coupling.couple(ids, tag.ids)
        return True

    def give(self, module: str, output: Any) -> None:
        """Note the candidates in the output of a module that has run."""
        tensor = first_output(output)
        tag = None if tensor is None else self.tag(tensor)
        found = None if tensor is None or tag is None else (tag.dim - tensor.dim(), tag.ids)
        before = self.outputs.setdefault(module, found)
        if before is not None and not (found and _same_axis(before, found)):
            self.outputs[module] = None

    def fix(self, tensor: Tensor, dim: int, why: str = "") -> None:
        """Never cut this dimension of one of the model's tensors."""
        key = self._key(tensor, dim)
        if key in self.slots:
            why = why or joined_by(self._second_use(tensor))
            self.coupling.pin(self.slots[key][0], why)
        else:
            self.slots[key] = (torch.full((tensor.shape[dim],), PINNED), False)

    def pin(self, tensor: Tensor, why: str = "") -> None:
        """Never cut this activation or tensor of the model. If it is not said why, that is because
        the current operation joins it with something that is never cut."""
        self.settle(tensor)
        if (tag := self.tag(tensor)) is not None:
            self.coupling.pin(tag.ids, why or joined_by(self.coupling.place))
            self._pinned[tensor] = int(tag.ids[0])
            self._tags.pop(tensor)
        if (ids := self.mixed.get(tensor)) is not None:
            self.coupling.pin(ids, why or joined_by(self.coupling.place))
        if self.is_state(tensor):
            for dim in range(tensor.dim()):
                self.fix(tensor, dim, why)

    def pinned_by(self, tensor: Tensor) -> int:
        """The pinned candidate because of which an activation is never cut; `PINNED` itself if
        there is none."""
        return self._pinned.get(tensor, PINNED)

    def pass_on_pinned(self, call: OperationCall) -> None:
        """Note that what is made of a pinned activation is never cut for the same reason."""
        if not self._pinned:  # as in most models until they return
            return
        causes = [one for one in map(self.pinned_by, call.operands) if one != PINNED]
        for tensor in call.outputs if causes else ():
            if tensor not in self._tags and tensor not in self.opened:
                self._pinned.setdefault(tensor, causes[0])

    def creators(self) -> dict[int, str]:
        """By candidate, the name of the module that creates it."""
        found: dict[int, str] = {}
        for (tensor, _), (ids, owned) in self.slots.items():
            for one in ids.tolist() if owned else ():
                found.setdefault(one, tensor.rpartition(".")[0])
        return found

    def count_work(self, weight: Tensor, multiplied: int) -> None:
        """Note that each element of a weight was used this often for the whole batch."""
        name = self.name(weight)
        self.positions[name] = self.positions.get(name, 0) + multiplied / self._batch

    def name(self, tensor: Tensor) -> str:
        """The first name of a tensor of the model."""
        base, _ = self._views.get(tensor, (tensor, ()))
        return self._parameters.get(id(base)) or self._buffers[id(base)]

    @contextmanager
    def trial(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Forget at the end whatever a rule does inside with an operation on these tensors."""
        slots, positions = dict(self.slots), dict(self.positions)
        owned_by_input, entered = set(self.owned_by_input), set(self.entered)
        grouped, heads, averages = set(self.grouped), len(self.heads), dict(self.averages)
        tables: list[ByTensor[Any]] = [self._tags, self.opened, self.mixed, self._pinned]
        before = [(table, each, table.get(each)) for table in tables for each in tensors]
        with self.coupling.trial():
            yield
        self.slots, self.positions, self.grouped = slots, positions, grouped
        self.owned_by_input, self.entered, self.averages = owned_by_input, entered, averages
        del self.heads[heads:]
        for table, tensor, value in before:
            if value is None:
                table.pop(tensor, None)
            else:
                table[tensor] = value

    def _key(self, tensor: Tensor, dim: int) -> tuple[str, int]:
        if tensor in self._views:
            dim = self._views[tensor][1][dim]
        return self.name(tensor), dim


def _same_axis(one: tuple[int, Tensor], other: tuple[int, Tensor]) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


def _swapped(value: Any, swap: Callable[[Tensor], Tensor]) -> Any:
    """Replace tensors, also in lists such as `cat` takes."""
    if isinstance(value, Tensor):
        return swap(value)
    if type(value) in (tuple, list):
        return type(value)(_swapped(item, swap) for item in value)
    return value
