"""Tracing: finding the units of any `nn.Module` from a forward pass, and checking them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.errors import TraceError
from adaptcl.units.size import parameters, smallest
from adaptcl.units.tensors import Tensors, each_tensor, mapped
from adaptcl.units.tracing.check import check
from adaptcl.units.tracing.flow import Flow
from adaptcl.units.tracing.forward import WithoutFusedLayers, check_traceable, checked_example, run
from adaptcl.units.tracing.numbering import number_units
from adaptcl.units.tracing.reach import Branch, OtherSide, ReachObserver
from adaptcl.units.tracing.rules import FollowUnits, Observer
from adaptcl.units.tracing.scale_powers import ScalePowerObserver
from adaptcl.units.tracing.stored_sizes import SizeObserver
from adaptcl.units.unit_map import UnitMap
from adaptcl.units.user_model import called, each_module, running_modules, without_effects

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
    sizes_told: Sequence[tuple[Tensor, str]]
    """Candidates of which an operation is told how many there are, and which that is."""


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
            with torch._C.DisableTorchFunction():
                flow.give(name, output)
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
        flow.uses = Counter({**flow.uses, **uses})
    return FollowedPass(
        number_units(model, flow, scaling.statistics, list(sizes.attributes(model))),
        flow,
        sample,
        reach.steered,
        frozenset(flow.entered - dict(model.named_parameters()).keys()),
        {**reach.left_out(model), **reach.escaped},
        branches,
        sizes.told,
    )
