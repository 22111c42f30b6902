"""Weights that are computed anew in every forward pass: weight norm, spectral norm and the like.

What such a layer multiplies by is no parameter but made of some, and a cut would change all of it:
without some of its columns a filter has another norm. So these layers are never cut, and a user is
told how to get plain ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from adaptcl.units.check import same_as_zeroed
from adaptcl.units.forward import StepsShown, running_in_training
from adaptcl.units.pinning import LONE, PinWatch, joined, watched
from adaptcl.units.size import parameters, smallest
from adaptcl.units.trace import claimed, trace, uncompiled
from adaptcl.units.unit_map import FIXED, UnitMap


def computed_weight(module: nn.Module) -> str | None:
    """Why a module's weight has no units and what to do, if the weight is computed; else None."""
    if isinstance(module, ParametrizationList):
        kinds = " and ".join(type(each).__name__.strip("_") for each in module)
        remove = "torch.nn.utils.parametrize.remove_parametrizations"
    else:
        # The older functions leave nothing but a hook and these names behind.
        own = dict(module.named_parameters(recurse=False))
        if "weight_v" in own:
            kinds, remove = "weight_norm", "torch.nn.utils.remove_weight_norm"
        elif "weight_orig" in own:
            kinds, remove = "spectral_norm or pruning", "the function that goes with it"
        else:
            return None
    return f"its weight is computed in every pass by {kinds}; take that off with {remove} to cut it"


# What can be cut of a user's own model, layer by layer, and why the rest cannot.
#
# Tracing alone says which units there are. To say what became of the others, the same forward
# pass is watched operation by operation, and the units are compared as they were before the
# `fixed` patterns, after them, and after each half of the check.

BY_PATTERN = "fixed by a pattern"
UNLIKE_ZEROING = "in a trial, cutting was not the same as zeroing"
UNTRAINABLE = "in a trial, the cut model could not be trained"
UNKNOWN = "no units are known in it"
TRAINING_ONLY = "used in training only"
UNUSED = "not used for the example"


@dataclass(frozen=True)
class Described:
    """The units of one module: a layer with weights of its own."""

    name: str
    kind: str
    """The module's class."""
    units: int
    """Outputs that can only be cut together count as one. None are known of a module whose
    outputs cannot be followed."""
    cuttable: int
    """How many of the units can be cut."""
    coupled: tuple[str, ...]
    """The other modules that lose outputs with them."""
    pinned: tuple[str, ...]
    """Why the other units are never cut."""
    uses: int
    """In how many layers of the forward pass its weights are: more than one if it is applied again
    or shares them."""


@dataclass(frozen=True)
class Description:
    """What can be cut of a model. As text it is a table."""

    modules: tuple[Described, ...]
    """Every module with weights of its own, in the order of `named_modules`."""
    parameters: int
    cuttable_parameters: int
    """How many of them can be cut at most. A sub-model keeps a unit of every layer."""
    unscaled: int
    """Units that can be cut but have no batch norm."""

    @property
    def least_retention(self) -> float:
        """The smallest fraction γ of the parameters that a sub-model can keep."""
        return 1 - self.cuttable_parameters / self.parameters

    def __str__(self) -> str:
        rows = [("module", "kind", "units", "can be cut", "remarks")]
        rows += [
            (each.name or "(the model)", each.kind, f"{each.units:,}", f"{each.cuttable:,}",
             _remarks(each))
            for each in self.modules
        ]  # fmt: skip
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
        coarser = (
            ", or a little more if cut to a `width_multiple`" if self.cuttable_parameters else ""
        )
        lines.append(
            f"{self.cuttable_parameters:,} of {self.parameters:,} parameters "
            f"({100 * (1 - self.least_retention):.3g} %) can be cut; no sub-model retains less "
            f"than {100 * self.least_retention:.3g} %{coarser}"
        )
        if self.unscaled:
            have = "unit has" if self.unscaled == 1 else "units have"
            lines.append(
                f"{self.unscaled:,} {have} no batch norm; orders by BN scales go by the norm "
                "of the weights there"
            )
        return "\n".join(lines)


def describe(model: nn.Module, example: Tensor, fixed: Sequence[str] = ()) -> Description:
    """Which units of a model can be cut, which cannot, and why.

    The arguments are those of `trace`, and the units the very ones that training will cut. The
    model is left as it is.
    """
    model = uncompiled(model)
    units = trace(model, example, fixed)
    sample = example.detach()[:2]
    devices = [example.device] if example.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), StepsShown():
        probe = copy.deepcopy(model).eval()
        watch = watched(probe, sample, units.alike)
        unfixed, uncertain = (claimed(probe, sample, patterns) for patterns in ((), fixed))
        stages = (
            (LONE, _by_dimension(unfixed)),
            (BY_PATTERN, _by_dimension(uncertain)),
            (UNLIKE_ZEROING, _by_dimension(same_as_zeroed(probe, uncertain, sample))),
            (UNTRAINABLE, _by_dimension(units)),
        )
        training = running_in_training(probe, sample)
    whole, least = (parameters(units, each) for each in (units.everything(), smallest(units)))
    described = _described(probe, watch, stages, training)
    return Description(described, whole, whole - least, _unscaled(units))


def _unscaled(units: UnitMap) -> int:
    scaled = [slot.ids for slot in units.slots if slot.tensor in units.bn_scales]
    known = torch.unique(torch.cat(scaled)) if scaled else torch.empty(0)
    return units.count - int((known != FIXED).sum())


_Dimension = tuple[str, int]
_Stages = Sequence[tuple[str, Mapping[_Dimension, list[int]]]]
"""What makes units uncuttable, one after the other, and the units that are left after each."""


def _by_dimension(units: UnitMap) -> dict[_Dimension, list[int]]:
    return {(slot.tensor, slot.dim): slot.ids.tolist() for slot in units.slots}


@dataclass
class _Found:
    """What is found out about one module."""

    seen: bool = False
    cuttable: set[int] = field(default_factory=set)
    pinned: dict[int, str] = field(default_factory=dict)
    """By candidate, why it is never cut."""
    uses: int = 0


def _described(
    model: nn.Module, watch: PinWatch, stages: _Stages, training: Collection[str]
) -> tuple[Described, ...]:
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        first_name.setdefault(id(parameter), name)
    modules = dict(model.named_modules())
    found: dict[str, _Found] = {}
    for name, module in modules.items():
        weights = [each for each in module.parameters(recurse=False) if each.dim() > 1]
        if weights:
            found[name] = _found([first_name[id(each)] for each in weights], watch, stages)
    holders: dict[int, list[str]] = {}
    for name, each in found.items():
        for unit in each.cuttable:
            holders.setdefault(unit, []).append(name)
    return tuple(
        Described(
            name,
            type(modules[name]).__name__,
            len(each.cuttable) + len(each.pinned),
            len(each.cuttable),
            tuple(
                dict.fromkeys(
                    other
                    for unit in sorted(each.cuttable)
                    for other in holders[unit]
                    if other != name
                )
            ),
            _reasons(modules[name], each, TRAINING_ONLY if name in training else UNUSED),
            each.uses,
        )
        for name, each in found.items()
    )


def _found(weights: Sequence[str], watch: PinWatch, stages: _Stages) -> _Found:
    """The units that the dimensions of these weights consist of."""
    result = _Found(uses=max(watch.uses[each] for each in weights))
    _, left = stages[-1]
    for (tensor, dim), (ids, owned) in watch.flow.slots.items():
        if tensor not in weights:
            continue
        result.seen = True
        if not owned:
            continue
        together = watch.bound(ids.tolist())
        for place, one in enumerate(ids.tolist()):
            unit = left[tensor, dim][place] if (tensor, dim) in left else FIXED
            if unit != FIXED:
                result.cuttable.add(unit)
                continue
            why = LONE if len(ids) == 1 else watch.why(one)
            why = why or next(
                reason
                for reason, units in stages
                if (tensor, dim) not in units or units[tensor, dim][place] == FIXED
            )
            if why == LONE and together is not None:
                why = together
            if why == UNLIKE_ZEROING and (told := watch.sized(one)) is not None:
                why = f"{why}: {told}; if it is a fixed number, say flatten(1) or -1 instead"
            result.pinned[one] = why
    return result


def _reasons(module: nn.Module, found: _Found, unseen: str) -> tuple[str, ...]:
    if found.cuttable or found.pinned:
        return tuple(dict.fromkeys(found.pinned.values()))
    return (computed_weight(module) or (_unknown(module) if found.seen else unseen),)


def _unknown(module: nn.Module) -> str:
    """That nothing is known of a module's units; where it is no layer, by its parameters' names."""
    if type(module).__module__.startswith("torch.nn."):
        return UNKNOWN
    names = [name for name, each in module.named_parameters(recurse=False) if each.dim() > 1]
    return f"no units are known in the bare parameter{'s' * (len(names) > 1)} {joined(names)}"


def _remarks(module: Described) -> str:
    remarks = list(module.pinned)
    if module.coupled:
        first, *others = module.coupled
        more = f" and {len(others)} more" if others else ""
        remarks.append(f"coupled with {first or 'the model'}{more}")
    if module.uses > 1:
        often = "twice" if module.uses == 2 else f"{module.uses} times"
        remarks.append(f"its weight is used {often}")
    return "; ".join(remarks)
