"""Why units are pinned: the forward pass of tracing, watched operation by operation.

Tracing only needs to know that units are never cut. A user wants to know what did it, and that is
often not the operation in which they came to be pinned: an addition only couples a layer with what
a layer norm elsewhere has pinned. So for everything that is never cut it is remembered where it
came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.units.flow import (
    PINNED,
    Flow,
    FlowMode,
    OperationCall,
    Tag,
    operation_name,
    tensors_in,
)
from adaptcl.units.forward import run, running_modules
from adaptcl.units.rules import HARMLESS, RULES
from adaptcl.units.rules.layers import LAYER_RULES
from adaptcl.units.rules.movements import sizes_asked

RETURNED = "the model returns them"
LONE = "a cut could leave a tensor empty"

_KEEPS_CHANNELS = {"batch_norm", "instance_norm", "group_norm", "prelu"}
"""Layers that hand on where something came from, as operations without weights do."""


@dataclass(frozen=True)
class Cause:
    """Why some units are never cut."""

    why: str
    through: str | None = None
    """The module whose units it happens to, if they are others, coupled with these."""

    def __str__(self) -> str:
        if self.through is None:
            return self.why
        return f"coupled with {self.through or 'the model'}: {self.why}"


_Origin = int | str
"""Where something that is never cut comes from: a unit candidate, or what to call it."""
_Operand = tuple[Tensor, Tag | None]


class PinWatch(FlowMode):
    """Notes what pins units, and how often each weight is used."""

    def __init__(self, flow: Flow, running: Sequence[str]) -> None:
        """`running` are the names of the modules that run at any moment, the innermost last."""
        super().__init__(flow, RULES, HARMLESS)
        self.flow = flow
        self.uses: Counter[str] = Counter()
        """By weight, in how many layers."""
        self._running = running
        self._causes: dict[int, Cause] = {}
        self._module: dict[int, str] = {}
        """By candidate, which module brings it forth."""
        self._looked_at: set[tuple[str, int]] = set()
        """The dimensions of the model's tensors that are known already."""
        self._origins: MutableMapping[Tensor, _Origin] = WeakTensorKeyDictionary()
        self._first_read: dict[str, _Origin | None] = {}
        """By weight, what it read at first if that is never cut."""
        self._roots: list[int] = []
        """By candidate, what stood for its set before the operation that is looked at."""
        self._binders: dict[int, dict[str, None]] = {}
        """By candidate, the operations that coupled it with others of the same activation."""
        self._sized: dict[int, str] = {}
        """By candidate, the first operation that was told how many of them there are."""
        self._passed = True

    def why(self, candidate: int) -> str | None:
        """Why a candidate is never cut, if the forward pass says so."""
        cause = self._causes.get(candidate)
        return None if cause is None else str(cause)

    def bound(self, candidates: Sequence[int]) -> str | None:
        """What couples these with each other, if all of them hang together."""
        places = {place: None for one in candidates for place in self._binders.get(one, ())}
        if not places or len(set(self.flow.coupling.roots(torch.tensor(candidates)))) > 1:
            return None
        return f"bound together by {joined(list(places))}: only all of them could be cut"

    def sized(self, candidate: int) -> str | None:
        """Where a number stands that may not be right any more when some of these are cut."""
        return self._sized.get(candidate)

    def enter(self, sample: Tensor) -> None:
        """The model is about to get this."""
        self._origins[sample] = "the model's input"

    def leave(self, tensor: Tensor) -> None:
        """The model returned this."""
        tag = self.flow.tag(tensor)
        self.flow.pin(tensor)
        self._note({} if tag is None else dict.fromkeys(tag.ids.tolist(), Cause(RETURNED)))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = operation_name(func)
        if name in HARMLESS:
            return super().__torch_function__(func, types, args, kwargs)
        operands = [(each, self.flow.tag(each)) for each in tensors_in((args, kwargs or {}))]
        used = {tensor for tensor, _ in self.flow.slots}
        again = {
            weight: self._owned(weight)
            for each, _ in operands
            if self.flow.is_state(each) and (weight := self.flow.name(each)) in used
        }
        joins, self._passed = self.flow.coupling.joins, True
        out = super().__torch_function__(func, types, args, kwargs)
        outputs = list(tensors_in(out))
        self._own_new_slots()
        if self.flow.coupling.joins != joins:
            self._note_binding(name, operands)
            self._note(self._direct(name, operands, again))
        self._remember(name, operands, outputs)
        return out

    def _passes(self, call: OperationCall) -> bool:
        self._passed = super()._passes(call)
        if self._passed and call.name in ("view", "reshape"):
            self._note_size(call)
        return self._passed

    def _note_size(self, call: OperationCall) -> None:
        tag, sizes = self.flow.tag(call.out), sizes_asked(call)
        if tag is not None and sizes and sizes[tag.dim] != -1:
            told = f"{self._place(call.name)} is told the size {sizes[tag.dim]}"
            for one in tag.ids.tolist():
                self._sized.setdefault(one, told)

    def _note_binding(self, name: str, operands: Sequence[_Operand]) -> None:
        for _, tag in operands:
            ids = [] if tag is None else tag.ids.tolist()
            if len(set(self.flow.coupling.roots(torch.tensor(ids)))) < len(
                set(map(self._old, ids))
            ):
                for one in ids:
                    self._binders.setdefault(one, {})[self._place(name)] = None

    def _old(self, one: int) -> int:
        """What stood for the set of a candidate before the operation that is looked at."""
        return self._roots[one] if one < len(self._roots) else one

    # What an operation pins ---------------------------------------------------------------------

    def _direct(
        self,
        name: str,
        operands: Sequence[_Operand],
        again: Mapping[str, set[int]],
    ) -> dict[int, Cause]:
        """By candidate that an operation meets, the cause if that is what pinned it."""
        met = [one for _, tag in operands if tag is not None for one in tag.ids.tolist()]
        place = self._place(name)
        found: dict[int, Cause] = {}
        if not self._passed:
            found = dict.fromkeys(met, Cause(f"a cut is not known to pass through {place}"))
            for weight, owned in again.items():
                for one in owned:
                    found.setdefault(one, Cause(f"{weight} is also used by {place}"))
        elif name in LAYER_RULES:
            tag = operands[0][1]
            if tag is not None and not tag.zero:
                not_zero = Cause(f"even zeroed, they are not zero at {place}")
                found = dict.fromkeys(tag.ids.tolist(), not_zero)
            for weight, owned in again.items():
                cause = self._used_twice(weight, operands[0])
                found = {**dict.fromkeys((*owned, *met), cause), **found}
        elif (origin := self._never_cut(operands)) is not None:
            found = dict.fromkeys(met, self._coupled_with(origin))
        return found

    def _used_twice(self, weight: str, given: _Operand) -> Cause:
        origin = self._first_read.get(weight)
        origin = self._origin(given) if origin is None else origin
        on = "" if origin is None else f", once on {self._called(origin)}"
        return Cause(f"{weight} is used twice{on}")

    def _never_cut(self, operands: Sequence[_Operand]) -> _Origin | None:
        """The operand that is never cut and as wide as the units of another one."""
        units = [(tag.dim - each.dim(), len(tag.ids)) for each, tag in operands if tag is not None]
        for each, tag in operands:
            wide = any(each.dim() >= -dim and each.shape[dim] == width for dim, width in units)
            if wide and (origin := self._origin((each, tag))) is not None:
                return origin
        return None

    def _note(self, direct: Mapping[int, Cause]) -> None:
        """Whatever has been pinned since the last time is pinned for one of these causes, or is
        coupled with what is."""
        roots = self.flow.coupling.all_roots()
        new = [one for one, root in enumerate(roots) if root == PINNED != self._old(one)]
        by_set = {self._old(one): one for one in reversed(list(direct)) if roots[one] == PINNED}
        for one in new:
            cause = direct.get(one)
            if cause is None and (other := by_set.get(self._old(one))) is not None:
                cause = self._passed_on(other, direct[other])
            if cause is None:
                cause = Cause(LONE)  # tracing itself pins what is alone
            if cause.through == self._module.get(one):
                cause = replace(cause, through=None)
            self._causes[one] = cause
        self._roots = roots

    def _passed_on(self, one: int, cause: Cause) -> Cause:
        """The cause for whatever is coupled with a candidate that has one."""
        if cause.through is not None or one not in self._module:
            return cause
        return replace(cause, through=self._module[one])

    # Where things come from ---------------------------------------------------------------------

    def _remember(self, name: str, operands: Sequence[_Operand], outputs: Sequence[Tensor]) -> None:
        origins = [origin for each in operands if (origin := self._origin(each)) is not None]
        mixed = not self._passed and any(tag is not None for _, tag in operands)
        handed_on = name in RULES and (name not in LAYER_RULES or name in _KEEPS_CHANNELS)
        for tensor in outputs:
            if _units_of(self.flow.tag(tensor)):
                continue
            if not operands:
                self._origins[tensor] = "a constant"
            elif mixed or not handed_on:
                self._origins[tensor] = f"what {self._place(name)} gives"
            elif origins:
                self._origins[tensor] = origins[0]
        for tensor, tag in operands:
            if self.flow.tag(tensor) is None and (units := _units_of(tag)):
                self._origins.setdefault(tensor, units[0])
        if name in LAYER_RULES:
            for tensor, _ in operands:
                if self.flow.is_parameter(tensor) and tensor.dim() > 1:
                    weight = self.flow.name(tensor)
                    self.uses[weight] += 1
                    self._first_read.setdefault(weight, self._origin(operands[0]))

    def _origin(self, operand: _Operand) -> _Origin | None:
        """Where an operand comes from if it is never cut; None if it can be."""
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
        module = self._running[-1] if self._running else ""
        return f"{operation} in {module}" if module else operation

    def _owned(self, weight: str) -> set[int]:
        """The candidates along all dimensions of a weight."""
        return {
            one
            for (tensor, _), (ids, _) in self.flow.slots.items()
            if tensor == weight
            for one in ids.tolist()
            if one != PINNED
        }

    def _own_new_slots(self) -> None:
        for key in self.flow.slots.keys() - self._looked_at:
            ids, owned = self.flow.slots[key]
            for one in ids.tolist() if owned else ():
                self._module.setdefault(one, key[0].rpartition(".")[0])
            self._looked_at.add(key)


def _units_of(tag: Tag | None) -> list[int]:
    """The candidates in an activation; none where it has been joined to what is never cut."""
    return [] if tag is None else [one for one in tag.ids.tolist() if one != PINNED]


def joined(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def watched(model: nn.Module, sample: Tensor, alike: frozenset[str] = frozenset()) -> PinWatch:
    """One forward pass of a model, with all that was noted in it; `alike` is as for `Flow`."""
    flow = Flow(model, len(sample), alike)
    with running_modules(model) as running:
        watch = PinWatch(flow, running)
        watch.enter(sample)
        with watch:
            run(model, sample, (), watch.leave)
    return watch
