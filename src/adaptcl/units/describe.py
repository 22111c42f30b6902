"""Description: which units of a model can be cut, layer by layer, and why the others cannot.

Tracing remembers why it never cuts a unit: the coupling knows which operation pinned it, or pinned
another unit that is coupled with it (`Coupling.cause`), and the check names the layers that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from html import escape

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from adaptcl.errors import enumerated
from adaptcl.units.size import parameters, smallest
from adaptcl.units.tensors import Tensors
from adaptcl.units.tracing.check import UNLIKE_ZEROING
from adaptcl.units.tracing.coupling import PINNED
from adaptcl.units.tracing.trace import Traced, find_units
from adaptcl.units.unit_map import FIXED, UnitMap
from adaptcl.units.user_model import running_in_training, uncompiled

UNCUT_INPUT = "it keeps the channels of something that is never cut"
UNKNOWN = "no units are known in it"
TRAINING_ONLY = "used in training only"
UNUSED = "not used for the example"


@dataclass(frozen=True)
class ModuleDescription:
    """The units of one module that has weights itself."""

    name: str
    kind: str
    """The module's class."""
    units: int
    """Outputs that can only be cut together count as one. 0 for a module whose outputs cannot be
    followed."""
    cuttable: int
    """How many of the units can be cut."""
    coupled: tuple[str, ...]
    """The other modules that lose outputs with these units."""
    pinned: tuple[str, ...]
    """Why the other units are never cut."""
    uses: int
    """How often the forward pass uses its weights: more than once if the module is applied again or
    shares them."""
    heads: bool = False
    """Whether the units that can be cut are heads of attention."""


@dataclass(frozen=True)
class Description:
    """What can be cut of a model. Its string form is a table."""

    modules: tuple[ModuleDescription, ...]
    """Every module that has weights itself, in the order of `named_modules`."""
    parameters: int
    """How many are trained; frozen ones do not count, unless all are frozen."""
    cuttable_parameters: int
    """How many of them can be cut at most: a sub-model keeps a unit of every layer."""
    unscaled: int
    """How many units can be cut but have no batch norm."""
    frozen: bool = False
    """Whether there are frozen parameters besides."""

    @property
    def least_retention(self) -> float:
        """The smallest fraction γ of the parameters that a sub-model can keep."""
        return 1 - self.cuttable_parameters / max(1, self.parameters)

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligns: tuple[Callable[[str, int], str], ...] = (
            str.ljust, str.ljust, str.rjust, str.rjust, str.ljust,
        )  # fmt: skip
        lines = [
            "  ".join(
                align(cell, width) for align, cell, width in zip(aligns, row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        tags = ["th", *["td"] * len(self.modules)]
        rows = [
            "".join(f"<{tag} style='text-align:left'>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(tags, self._rows(), strict=True)
        ]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>{table}</table>" + "".join(f"<p>{escape(e)}</p>" for e in self._notes())

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("module", "kind", "units", "can be cut", "remarks")]
        rows += [
            (each.name or "(the model)", each.kind, f"{each.units:,}",
             f"{each.cuttable:,}{' heads' if each.heads else ''}", _remarks(each))
            for each in self.modules
        ]  # fmt: skip
        return rows

    def _notes(self) -> list[str]:
        coarser = (
            ", or a little more where blocks are cut (`width_multiple`)"
            if self.cuttable_parameters
            else ""
        )
        notes = [
            f"{self.cuttable_parameters:,} of {self.parameters:,} "
            f"{'trained ' * self.frozen}parameters "
            f"({100 * (1 - self.least_retention):.3g} %) can be cut; no sub-model retains less "
            f"than {100 * self.least_retention:.3g} %{coarser}"
        ]
        if self.unscaled:
            have = "unit has" if self.unscaled == 1 else "units have"
            notes.append(
                f"{self.unscaled:,} {have} no batch norm: the weights that read a unit say there "
                "how important it is"
            )
        return notes


def describe(model: nn.Module, example: Tensors, fixed: Sequence[str] = ()) -> Description:
    """Which units of a model can be cut, which cannot, and why.

    The arguments are those of `trace`, and the units are those that training will cut. The model
    stays unchanged.
    """
    model = uncompiled(model)
    traced = find_units(model, example, fixed)
    units = traced.units
    whole, least = (parameters(units, each) for each in (units.everything(), smallest(units)))
    frozen = units.trained != units.parameters
    modules = _describe_modules(model, traced)
    return Description(modules, whole, whole - least, _unscaled(units), frozen)


def _unscaled(units: UnitMap) -> int:
    scaled = [slot.ids for slot in units.slots if slot.tensor in units.bn_scales]
    known = torch.unique(torch.cat(scaled)) if scaled else torch.empty(0)
    return units.count - int((known != FIXED).sum())


@dataclass
class _Findings:
    """What is known about the units of one module."""

    seen: bool = False
    cuttable: set[int] = field(default_factory=set)
    pinned: dict[int, str] = field(default_factory=dict)
    """By candidate, why it is never cut."""


def _describe_modules(model: nn.Module, traced: Traced) -> tuple[ModuleDescription, ...]:
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = {
        name: [first_name[id(each)] for each in module.parameters(recurse=False) if each.dim() > 1]
        for name, module in model.named_modules()
    }
    examination = _Examination(traced)
    found = {name: examination.of(names) for name, names in weights.items() if names}
    unseen = not all(each.seen for each in found.values())
    training = running_in_training(model, traced.followed.sample) if unseen else set()
    holders: dict[int, list[str]] = {}
    for name, each in found.items():
        for unit in each.cuttable:
            holders.setdefault(unit, []).append(name)
    units, flow = traced.units, traced.followed.flow
    heads = {unit for each in units.layers if each.name in units.heads for unit in each.units}
    described = []
    for name, each in found.items():
        module = model.get_submodule(name)
        pinned = tuple(dict.fromkeys(each.pinned.values()))
        if not each.seen:
            pinned = (TRAINING_ONLY if name in training else UNUSED,)
        elif not each.cuttable and not pinned:
            known = (flow.unknown[weight] for weight in weights[name] if weight in flow.unknown)
            pinned = (next(known, _unknown(module)),)
        if not each.cuttable and (computed := _reparametrized(module)) is not None:
            pinned = (computed,)
        described.append(
            ModuleDescription(
                name,
                type(module).__name__,
                units=len(each.cuttable) + len(each.pinned),
                cuttable=len(each.cuttable),
                coupled=tuple(dict.fromkeys(_together(each.cuttable, holders, name))),
                pinned=pinned,
                uses=max(flow.uses[weight] for weight in weights[name]),
                heads=bool(each.cuttable) and each.cuttable <= heads,
            )
        )
    return tuple(described)


def _together(
    units: AbstractSet[int], holders: Mapping[int, Sequence[str]], name: str
) -> Iterator[str]:
    """The other modules that hold some of these units."""
    for others in dict.fromkeys(tuple(holders[unit]) for unit in sorted(units)):
        yield from (other for other in others if other != name)


class _Examination:
    """Tells which units own some weights, and why they are never cut."""

    def __init__(self, traced: Traced) -> None:
        self._flow = traced.followed.flow
        self._creators = self._flow.creators()
        told = reversed(traced.followed.sizes_told)  # the first for a candidate counts
        self._sizes_told = {one: why for ids, why in told for one in ids.tolist()}
        self._unchecked = _by_dimension(traced.followed.units)
        self._left = _by_dimension(traced.units)
        self._failed = {
            unit: traced.pinned[layer.name]
            for layer in traced.followed.units.layers
            if layer.name in traced.pinned
            for unit in layer.units
        }

    def of(self, weights: Sequence[str]) -> _Findings:
        found = _Findings()
        for key, (ids, owned) in self._flow.slots.items():
            if key[0] not in weights:
                continue
            found.seen = True
            none = [FIXED] * len(ids)
            before, left = self._unchecked.get(key, none), self._left.get(key, none)
            for one, unchecked, unit in zip(ids.tolist(), before, left, strict=True):
                if owned and unit != FIXED:
                    found.cuttable.add(unit)
                elif owned:
                    found.pinned[one] = self._why(one, unchecked)
        return found

    def _why(self, candidate: int, unit: int) -> str:
        """`unit` is the number of the candidate before the check; `FIXED` if a rule pinned it."""
        if unit != FIXED:
            why = self._failed[unit]
            if why == UNLIKE_ZEROING and (told := self._sizes_told.get(candidate)) is not None:
                return f"{why}: {told}; if it is a fixed number, say flatten(1) or -1 instead"
            return why
        if candidate == PINNED:
            return UNCUT_INPUT
        pinned, why = self._flow.coupling.cause(candidate)
        through = self._creators.get(pinned)
        if through is None or through == self._creators.get(candidate):
            return why
        return f"coupled with {through or 'the model'}: {why}"


def _by_dimension(units: UnitMap) -> dict[tuple[str, int], list[int]]:
    return {(slot.tensor, slot.dim): slot.ids.tolist() for slot in units.slots}


def _reparametrized(module: nn.Module) -> str | None:
    """The reason and the remedy if a weight is reparametrized, by weight norm or the like.

    Such a layer is never cut: the weight is computed in every forward pass, and without some of its
    columns a filter would have another norm.
    """
    if isinstance(module, ParametrizationList):
        by = " and ".join(type(each).__name__.strip("_") for each in module)
        remove = "torch.nn.utils.parametrize.remove_parametrizations"
    else:
        # The older functions leave only a hook and these names behind.
        names = dict(module.named_parameters(recurse=False))
        if "weight_v" in names:
            by, remove = "weight_norm", "torch.nn.utils.remove_weight_norm"
        elif "weight_orig" in names:
            by, remove = "spectral_norm or pruning", "the function that goes with it"
        else:
            return None
    return f"its weight is computed in every pass by {by}; take that off with {remove} to cut it"


def _unknown(module: nn.Module) -> str:
    """The reason if units are unknown; for a module that is no layer, with its parameters."""
    if type(module).__module__.startswith("torch.nn."):
        return UNKNOWN
    names = [name for name, each in module.named_parameters(recurse=False) if each.dim() > 1]
    return f"no units are known in the bare parameter{'s' * (len(names) > 1)} {enumerated(names)}"


def _remarks(module: ModuleDescription) -> str:
    remarks = list(module.pinned)
    if module.coupled:
        first, *others = module.coupled
        more = f" and {len(others)} more" if others else ""
        remarks.append(f"coupled with {first or 'the model'}{more}")
    if module.uses > 1:
        often = "twice" if module.uses == 2 else f"{module.uses} times"
        remarks.append(f"its weight is used {often}")
    return "; ".join(remarks)
