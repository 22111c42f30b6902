"""Pinning: why some units are never cut, for `describe`.

Tracing only needs to know which units are pinned. The user wants to know the cause, which is often
not the operation that pinned them: an addition may only couple a layer with units that a layer norm
has pinned elsewhere. So this observer of the forward pass remembers, for everything that is never
cut, where it came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.errors import enumerated
from adaptcl.units.tensors import Tensors, each_tensor, tensors_in
from adaptcl.units.tracing.flow import PINNED, Flow, OperationCall, Tag
from adaptcl.units.tracing.rules import RULES, WEIGHT_RULES
from adaptcl.units.tracing.rules.movements import sizes_asked

RETURNED = "the model returns them"
LONE = "a cut could leave a tensor empty"

_KEEPS_CHANNELS = {"batch_norm", "instance_norm", "group_norm", "prelu"}
"""Layers whose output has the origin of their input, as that of operations without weights."""


@dataclass(frozen=True)
class Cause:
    """Why some units are never cut."""

    why: str
    through: str | None = None
    """The module whose units are pinned, if these are only coupled with them."""

    def __str__(self) -> str:
        if self.through is None:
            return self.why
        return f"coupled with {self.through or 'the model'}: {self.why}"


_Origin = int | str
"""Where something that is never cut comes from: a unit candidate, or a description."""
_Operand = tuple[Tensor, Tag | None]


class PinObserver:
    """Notes what pins units in a forward pass, and how often each weight is used."""

    def __init__(self, flow: Flow, sample: Tensors) -> None:
        """`sample` is the input of the model."""
        self.flow = flow
        self.uses: Counter[str] = Counter()
        """By weight, the number of layers that use it."""
        self._causes: dict[int, Cause] = {}
        self._module: dict[int, str] = {}
        """By candidate, the module that creates it."""
        self._known_slots: set[tuple[str, int]] = set()
        self._origins: MutableMapping[Tensor, _Origin] = WeakTensorKeyDictionary()
        self._first_read: dict[str, _Origin | None] = {}
        """By weight, the origin of its first input, if that is never cut."""
        self._roots = torch.empty(0, dtype=torch.int64)
        """The root of each candidate before the current operation."""
        self._root_list: list[int] = []
        """The same as a list, from which one is read faster."""
        self._binders: dict[int, dict[str, None]] = {}
        """By candidate, the operations that coupled it with others of the same activation."""
        self._sized: dict[int, str] = {}
        """By candidate, the first operation that has their number as an argument."""
        # The state before the current operation:
        self._operands: list[_Operand] = []
        self._used_again: dict[str, set[int]] = {}
        """By weight that was used before, its candidates."""
        self._joins = 0
        for tensor in each_tensor(sample):
            self._origins[tensor] = "the model's input"

    def why(self, candidate: int) -> str | None:
        """Why a candidate is never cut, if the forward pass pins it."""
        cause = self._causes.get(candidate)
        return None if cause is None else str(cause)

    def bound(self, candidates: Sequence[int]) -> str | None:
        """What couples these candidates with each other, if they are all coupled."""
        places = {place: None for one in candidates for place in self._binders.get(one, ())}
        if not places or len(set(self.flow.coupling.roots(torch.tensor(candidates)))) > 1:
            return None
        return f"bound together by {enumerated(list(places))}: only all of them could be cut"

    def sized(self, candidate: int) -> str | None:
        """The operation with a size as an argument that a cut of this candidate may make wrong."""
        return self._sized.get(candidate)

    def pin(self, tensor: Tensor, why: str) -> None:
        """Pin an activation that no operation pins."""
        self.flow.settle(tensor)
        tag = self.flow.tag(tensor)
        self.flow.pin(tensor)
        self._note({} if tag is None else dict.fromkeys(tag.ids.tolist(), Cause(why)))

    def before(self, name: str, operands: Sequence[Tensor]) -> None:
        self._operands = [(each, self.flow.tag(each)) for each in operands]
        used = {tensor for tensor, _ in self.flow.slots}
        self._used_again = {
            weight: self._owned(weight)
            for each in operands
            if self.flow.is_state(each) and (weight := self.flow.name(each)) in used
        }
        self._joins = self.flow.coupling.joins

    def after(self, call: OperationCall, passed: bool) -> None:
        if passed and call.name in ("view", "reshape"):
            self._note_size(call)
        self._note_new_slots()
        if self.flow.coupling.joins != self._joins:
            self._note_binding(call.name)
            self._note(self._direct(call.name, passed))
        self._remember(call.name, list(tensors_in(call.out)), passed)

    def _note_size(self, call: OperationCall) -> None:
        tag, sizes = self.flow.tag(call.out), sizes_asked(call)
        if tag is not None and sizes and sizes[tag.dim] != -1:
            size_given = f"{self._place(call.name)} is told the size {sizes[tag.dim]}"
            for one in tag.ids.tolist():
                self._sized.setdefault(one, size_given)

    def _note_binding(self, name: str) -> None:
        for _, tag in self._operands:
            ids = [] if tag is None else tag.ids.tolist()
            if len(set(self.flow.coupling.roots(torch.tensor(ids)))) < len(
                set(map(self._old_root, ids))
            ):
                for one in ids:
                    self._binders.setdefault(one, {})[self._place(name)] = None

    def _old_root(self, one: int) -> int:
        """The root of a candidate before the current operation."""
        return self._root_list[one] if one < len(self._root_list) else one

    # What an operation pins ---------------------------------------------------------------------

    def _direct(self, name: str, passed: bool) -> dict[int, Cause]:
        """By candidate that an operation meets, the cause if this operation pins it."""
        operands, again = self._operands, self._used_again
        met = [one for _, tag in operands if tag is not None for one in tag.ids.tolist()]
        mixed = (self.flow.mixed.get(each) for each, _ in operands)
        met += [one for ids in mixed if ids is not None for one in ids.tolist()]
        place = self._place(name)
        found: dict[int, Cause] = {}
        if not passed:
            found = dict.fromkeys(met, Cause(f"a cut is not known to pass through {place}"))
            for weight, owned in again.items():
                for one in owned:
                    found.setdefault(one, Cause(f"{weight} is also used by {place}"))
        elif name in WEIGHT_RULES:
            for weight, owned in again.items():
                cause = self._used_twice(weight, operands[0])
                found = {**dict.fromkeys((*owned, *met), cause), **found}
            tag = operands[0][1]
            if tag is not None and not tag.zero:
                not_zero = Cause(f"even zeroed, they are not zero at {place}")
                found = {**dict.fromkeys(tag.ids.tolist(), not_zero), **found}
        elif (origin := self._never_cut(operands)) is not None:
            found = dict.fromkeys(met, self._coupled_with(origin))
        return found

    def _used_twice(self, weight: str, operand: _Operand) -> Cause:
        origin = self._first_read.get(weight)
        origin = self._origin(operand) if origin is None else origin
        on = "" if origin is None else f", once on {self._called(origin)}"
        return Cause(f"{weight} is used twice{on}")

    def _never_cut(self, operands: Sequence[_Operand]) -> _Origin | None:
        """The origin of an operand that is never cut and as wide as the units of another."""
        units = [(tag.dim - each.dim(), len(tag.ids)) for each, tag in operands if tag is not None]
        for each, tag in operands:
            wide = any(each.dim() >= -dim and each.shape[dim] == width for dim, width in units)
            if wide and (origin := self._origin((each, tag))) is not None:
                return origin
        return None

    def _note(self, direct: Mapping[int, Cause]) -> None:
        """Note the cause of everything pinned since the last call: one of the `direct` causes, or
        coupling with a candidate that has one."""
        now = self.flow.coupling.all_roots()
        before = torch.arange(len(now))
        before[: len(self._roots)] = self._roots
        new: list[int] = ((now == PINNED) & (before != PINNED)).nonzero().flatten().tolist()
        roots: list[int] = now.tolist()
        by_set = {
            self._old_root(one): one for one in reversed(list(direct)) if roots[one] == PINNED
        }
        for one in new:
            cause = direct.get(one)
            if cause is None and (other := by_set.get(self._old_root(one))) is not None:
                cause = self._passed_on(other, direct[other])
            if cause is None:
                cause = Cause(LONE)  # tracing pins single units
            if cause.through == self._module.get(one):
                cause = replace(cause, through=None)
            self._causes[one] = cause
        self._roots, self._root_list = now, roots

    def _passed_on(self, one: int, cause: Cause) -> Cause:
        """The cause for candidates that are coupled with this one."""
        if cause.through is not None or one not in self._module:
            return cause
        return replace(cause, through=self._module[one])

    # Where things come from ---------------------------------------------------------------------

    def _remember(self, name: str, outputs: Sequence[Tensor], passed: bool) -> None:
        """Note the origin of the outputs of an operation, and the weights that it uses."""
        operands = self._operands
        origins = [origin for each in operands if (origin := self._origin(each)) is not None]
        mixed = not passed and any(tag is not None for _, tag in operands)
        keeps_origin = name in RULES and (name not in WEIGHT_RULES or name in _KEEPS_CHANNELS)
        for tensor in outputs:
            if _units_of(self.flow.tag(tensor)):
                continue
            if not operands:
                self._origins[tensor] = "a constant"
            elif mixed or not keeps_origin:
                self._origins[tensor] = f"what {self._place(name)} gives"
            elif origins:
                self._origins[tensor] = origins[0]
        for tensor, tag in operands:
            if self.flow.tag(tensor) is None and (units := _units_of(tag)):
                self._origins.setdefault(tensor, units[0])
        if name in WEIGHT_RULES:
            for tensor, _ in operands:
                if self.flow.is_parameter(tensor) and tensor.dim() > 1:
                    weight = self.flow.name(tensor)
                    self.uses[weight] += 1
                    self._first_read.setdefault(weight, self._origin(operands[0]))

    def _origin(self, operand: _Operand) -> _Origin | None:
        """The origin of an operand that is never cut; None if it can be cut."""
        tensor, tag = operand
        if units := _units_of(tag):
            return next((one for one in units if one in self._causes), None)
        if self.flow.is_state(tensor):
            kind = "parameter" if self.flow.is_parameter(tensor) else "buffer"
            return f"the {kind} {self.flow.name(tensor)}"
        return self._origins.get(tensor, "a constant")

    def _coupled_with(self, origin: _Origin) -> Cause:
        if isinstance(origin, int) and origin in self._causes:
            return self._passed_on(origin, self._causes[origin])
        return Cause(f"coupled with {self._called(origin)}, which is never cut")

    def _called(self, origin: _Origin) -> str:
        if isinstance(origin, str):
            return origin
        return f"what {self._module.get(origin) or 'the model'} gives"

    def _place(self, operation: str) -> str:
        return f"{operation} in {self.flow.module}" if self.flow.module else operation

    def _owned(self, weight: str) -> set[int]:
        """The candidates along all dimensions of a weight."""
        return {
            one
            for (tensor, _), (ids, _) in self.flow.slots.items()
            if tensor == weight
            for one in ids.tolist()
            if one != PINNED
        }

    def _note_new_slots(self) -> None:
        for key in self.flow.slots.keys() - self._known_slots:
            ids, owned = self.flow.slots[key]
            for one in ids.tolist() if owned else ():
                self._module.setdefault(one, key[0].rpartition(".")[0])
            self._known_slots.add(key)


def _units_of(tag: Tag | None) -> list[int]:
    """The candidates of an activation, without the one that is never cut."""
    return [] if tag is None else [one for one in tag.ids.tolist() if one != PINNED]
