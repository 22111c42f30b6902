"""Tracing: finding the units of any `nn.Module` from a forward pass, and checking them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from adaptcl.errors import TraceError, enumerated
from adaptcl.units.size import parameters, smallest
from adaptcl.units.tensors import Tensors, each_tensor, mapped
from adaptcl.units.tracing.check import check
from adaptcl.units.tracing.coupling import LONE, PINNED
from adaptcl.units.tracing.flow import Flow
from adaptcl.units.tracing.forward import WithoutFusedLayers, check_traceable, checked_example, run
from adaptcl.units.tracing.reach import Branch, OtherSide, ReachObserver
from adaptcl.units.tracing.rules import FollowUnits, Observer
from adaptcl.units.tracing.scale_powers import ScalePowerObserver
from adaptcl.units.tracing.stored_sizes import SizeObserver
from adaptcl.units.unit_map import FIXED, Average, Layer, Slot, StoredSize, UnitMap, Work
from adaptcl.units.user_model import called, each_module, running_modules, without_effects

_NORMS = (_NormBase, nn.GroupNorm)
"""Batch, instance and group norm: each of their scales belongs to one unit."""

_FEW = 2
"""Samples for most models: batch norm cannot train on one."""
MOST_SAMPLES = 64
"""Samples for a model of which values decide what it uses."""


def trace(model: nn.Module, example: Tensors, fixed: Sequence[str] = ()) -> UnitMap:
    """Find all units of a model that can be cut, and what belongs to each.

    `example` is a batch of inputs: a tensor, or a tuple or dictionary of tensors. Two samples are
    enough for most models; where values decide which parts of the model run, as in a mixture of
    experts, parts that no sample reaches are never cut. `fixed` are patterns such as `layer*.conv3`
    for names of modules whose output is never cut. The output of the model is never cut, nor is
    anything whose cutting does not equal zeroing, which is checked on a copy. The model stays
    unchanged. Raises `TraceError`, with the name of the module, if the model cannot be traced.
    """
    return find_units(model, example, fixed).units


@dataclass(frozen=True)
class Traced:
    """The units of a model, and what tells why the others are never cut."""

    units: UnitMap
    pinned: Mapping[str, str]
    """By layer that failed the check, the reason."""
    followed: FollowedPass


@dataclass(frozen=True)
class FollowedPass:
    """What the rules find while a model runs."""

    units: UnitMap
    flow: Flow
    sample: Tensors
    steered: bool
    """Whether values decide what the model does."""
    buffers: frozenset[str]
    """Buffers that units own, other than the statistics of norms."""
    unreached: Mapping[str, str]
    """Modules that run without a part of theirs, or in which numbers leave the tensors, each with
    that as the reason to pin units."""
    branches: Mapping[Branch, int]
    """How often values decided, by the place of the decision."""
    sizes_told: Mapping[int, str]
    """By candidate, an operation that is told a size which a cut may make wrong."""


def find_units(model: nn.Module, example: Tensors, fixed: Sequence[str]) -> Traced:
    """The units that `trace` finds, and why the others are pinned."""
    check_traceable(model)
    example = checked_example(example, model)
    with without_effects(example), WithoutFusedLayers():
        probe = _copied(model).eval()
        followed = follow_units(probe, example, fixed)
        units, pinned = check(
            probe,
            followed.units,
            followed.sample,
            steered=followed.steered,
            branches=followed.branches,
            buffers=followed.buffers,
        )
    return Traced(units, pinned, followed)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a user's class may raise anything
        raise TraceError(f"{called('', model)} cannot be copied: {error}") from error


def follow_units(model: nn.Module, example: Tensors, fixed: Sequence[str] = ()) -> FollowedPass:
    """The units that can be cut according to the rules, before the check.

    A grouped convolution loses whole groups. If none of its groups can be cut, as between channel
    shuffles, all its groups lose the same channels instead, if that makes smaller sub-models.
    """
    unreached: Mapping[str, str] = {}
    sample = _first(example, _FEW)
    found = _follow(model, sample, fixed)
    if found.steered and found.unreached:
        sample = _first(example, MOST_SAMPLES)
        found = _follow(model, sample, fixed)
        if unreached := found.unreached:
            found = _follow(model, sample, fixed, unreached=unreached)
    uncut = frozenset(found.flow.grouped - found.units.by_tensor.keys())
    if not uncut:
        return found
    narrower = _follow(model, sample, fixed, uncut, unreached)
    return min(found, narrower, key=lambda each: parameters(each.units, smallest(each.units)))


def _first(example: Tensors, count: int) -> Tensors:
    return mapped(lambda each: each[:count], example)


def _follow(
    model: nn.Module,
    sample: Tensors,
    fixed: Sequence[str],
    alike: frozenset[str] = frozenset(),
    unreached: Mapping[str, str] | None = None,
) -> FollowedPass:
    """One forward pass. `alike` is as for `Flow`, and `unreached` as for `ReachObserver`."""
    flow = Flow(model, len(each_tensor(sample)[0]), alike)
    scaling = ScalePowerObserver(flow)
    with running_modules(model) as running:
        flow.running = running

        def pin(tensor: Tensor, why: str) -> None:
            with torch._C.DisableTorchFunction():  # this is no operation of the model
                flow.pin(tensor, why)

        reach = ReachObserver(flow, pin, unreached or {}, sample)

        def leave(name: str, output: Any) -> None:
            reach.give(name, output)
            reach.give(flow.module, output)

        sizes = SizeObserver(flow)
        observers: list[Observer] = [sizes.note, reach.note]
        if any(each.is_floating_point() for each in model.buffers()):  # else no statistics
            observers.insert(0, scaling.note)

        def follow_once() -> None:
            with FollowUnits(flow, *observers), each_module(model, reach.give, leave):
                run(model, sample, fixed, pin)

        follow_once()
        branches, positions, uses = dict(reach.branches), dict(flow.positions), dict(flow.uses)
        buffers = {each: each.clone() for each in model.buffers()} if branches else {}
        for place, times in branches.items():
            with suppress(TraceError), OtherSide(place, times):  # it may be there to fail
                follow_once()
            running.clear()
            for buffer, before in buffers.items():
                buffer.copy_(before)
        flow.positions = {**flow.positions, **positions}
        flow.uses.update({name: often - flow.uses[name] for name, often in uses.items()})
    return FollowedPass(
        _unit_map(model, flow, scaling.statistics, list(sizes.attributes(model))),
        flow,
        sample,
        reach.steered,
        frozenset(flow.entered - dict(model.named_parameters()).keys()),
        {**reach.left_out(model), **reach.escaped},
        branches,
        sizes.told,
    )


def without_units(model: nn.Module) -> UnitMap:
    """The unit map of a model of which nothing can be cut."""
    return _unit_map(model, Flow(model, batch=1), {}, ())


def _unit_map(
    model: nn.Module,
    flow: Flow,
    scale_powers: Mapping[str, Tensor],
    attributes: Sequence[tuple[str, str, Tensor]],
) -> UnitMap:
    """Number the units consecutively, with layers in forward order.

    All `attributes` that may be stored sizes become such; the check finds those that are.
    """
    layers, numbers = _numbered(flow)

    known: dict[int, Tensor] = {}  # many dimensions have the very same candidates

    def numbered(ids: Tensor) -> Tensor:
        if id(ids) not in known:
            units = [numbers.get(root, FIXED) for root in flow.coupling.roots(ids)]
            known[id(ids)] = torch.tensor(units)
        return known[id(ids)]

    found = {key: numbered(ids) for key, (ids, _) in flow.slots.items()}
    heads = {unit for ids in flow.heads for unit in numbered(ids).tolist()}
    stored = {(module, name): numbered(ids) for module, name, ids in attributes}
    state = model.state_dict(keep_vars=True)
    first_name = _first_names(*model.named_parameters(), *model.named_buffers())
    slots = tuple(
        Slot(name, dim, ids, flow.slots[key][1] or key in flow.owned_by_input)
        for name, tensor in state.items()
        for dim in range(tensor.dim())
        if (ids := found.get(key := (first_name[id(tensor)], dim))) is not None
        and bool((ids != FIXED).any())
    )
    cuttable = {slot.tensor for slot in slots}
    untrained = {name for name, each in model.named_parameters() if not each.requires_grad}
    return UnitMap(
        slots=slots,
        layers=layers,
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        parameters=frozenset(name for name, _ in model.named_parameters()),
        bn_scales=frozenset(
            scale
            for name, module in model.named_modules()
            if isinstance(module, _NORMS) and (scale := f"{name}.weight") in cuttable
        ),
        work=tuple(Work(weight, round(often)) for weight, often in flow.positions.items()),
        integers=frozenset(n for n, tensor in state.items() if not tensor.is_floating_point()),
        tied=(tied := _tied(model, state)),
        frozen=frozenset(name for name in state if tied.get(name, name) in untrained),
        constants=frozenset(
            name
            for name, tensor in model.named_buffers()
            if name in state and tensor.is_floating_point() and not bool(tensor.isfinite().all())
        ),
        dtypes={name: tensor.dtype for name, tensor in state.items()},
        alike=flow.alike,
        scale_powers={
            name: powers
            for name, tensor in state.items()
            if (powers := scale_powers.get(first_name[id(tensor)])) is not None
            and bool((powers != 1).any())
        },
        sizes=tuple(StoredSize(module, name, ids) for (module, name), ids in stored.items()),
        averages=tuple(
            Average(module, dim, numbered(ids)) for module, (dim, ids) in flow.averages.items()
        ),
        heads=frozenset(layer.name for layer in layers if not heads.isdisjoint(layer.units)),
    )


def _first_names(*named: tuple[str, Tensor]) -> dict[int, str]:
    return {id(tensor): name for name, tensor in reversed(named)}


def _tied(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """The first name of a tensor, by each of its further names in the state dict."""
    # The names in the state dict, which holds no buffers that are not saved.
    first = _first_names(*model.named_parameters(), *state.items())
    return {n: first[id(tensor)] for n, tensor in state.items() if first[id(tensor)] != n}


def _numbered(flow: Flow) -> tuple[tuple[Layer, ...], dict[int, int]]:
    """The layers, and the unit number of each root that can be cut."""
    layers: list[Layer] = []
    numbers: dict[int, int] = {}
    for name, roots in _safe_layers(flow).items():
        start = len(numbers)
        numbers.update((root, start + place) for place, root in enumerate(roots))
        layers.append(Layer(name, range(start, start + len(roots))))
    return tuple(layers), numbers


def _safe_layers(flow: Flow) -> dict[str, list[int]]:
    """The units by the module that creates them, without any that could empty a tensor.

    A module with several bare weights that create units has a layer for each of them.
    A sub-model keeps at least one unit of every layer. Every dimension of every tensor must then
    keep an index. So a layer of a single unit is pinned, and so is a dimension that holds neither
    something pinned nor a whole layer.
    """
    while True:
        created: dict[str, list[int]] = {}
        seen = {PINNED}
        # A layer has the name of a weight rather than of something that is added or multiplied.
        slots = sorted(flow.slots.items(), key=lambda each: each[0][0] in flow.entered)
        for (tensor, _), (ids, owned) in slots:
            if owned:
                present = dict.fromkeys(flow.coupling.roots(ids))
                new = [root for root in present if root not in seen]
                module = tensor.rpartition(".")[0]
                if new or module not in created:
                    created[tensor if module in created else module] = new
                seen.update(new)
        layers = {name: roots for name, roots in created.items() if len(roots) > 1}
        wholes = [set(roots) for roots in layers.values()]
        unsafe = [
            ids
            for ids, _ in flow.slots.values()
            if PINNED not in (roots := set(flow.coupling.roots(ids)))
            and not any(whole <= roots for whole in wholes)
        ]
        unsafe += [torch.tensor(roots) for roots in created.values() if len(roots) == 1]
        if not unsafe:
            return layers
        for ids in unsafe:
            flow.coupling.pin(ids, _why_unsafe(flow, ids))


def _why_unsafe(flow: Flow, ids: Tensor) -> str:
    if binders := flow.coupling.binders(ids):
        return f"bound together by {enumerated(binders)}: only all of them could be cut"
    return LONE
