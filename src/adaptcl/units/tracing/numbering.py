"""Numbering: making the unit map of what the rules have found in a forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from adaptcl.errors import enumerated
from adaptcl.units.tracing.coupling import LONE, PINNED
from adaptcl.units.tracing.flow import Flow
from adaptcl.units.unit_map import FIXED, Axis, Layer, Slot, StoredSize, UnitMap, Work

_NORMS = (_NormBase, nn.GroupNorm)
"""Batch, instance and group norm: each of their scales belongs to one unit."""


def without_units(model: nn.Module) -> UnitMap:
    """The unit map of a model of which nothing can be cut."""
    return number_units(model, Flow(model, batch=1), {}, ())


def number_units(
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
        integers=frozenset(
            name for name, tensor in state.items() if not tensor.is_floating_point()
        ),
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
            Axis(module, dim, numbered(ids)) for module, (dim, ids) in flow.averages.items()
        ),
        outputs=tuple(
            Axis(layer.name, dim, units)
            for layer in layers
            if (given := flow.outputs.get(layer.name)) is not None
            for dim, units in [(given[0], numbered(given[1]))]
            if any(unit in layer.units for unit in units.tolist())
        ),
        heads=frozenset(layer.name for layer in layers if not heads.isdisjoint(layer.units)),
    )


def _first_names(*named: tuple[str, Tensor]) -> dict[int, str]:
    return {id(tensor): name for name, tensor in reversed(named)}


def _tied(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """The first name of a tensor, by each of its further names in the state dict."""
    # The names in the state dict, which holds no buffers that are not saved.
    first = _first_names(*model.named_parameters(), *state.items())
    return {name: first[id(tensor)] for name, tensor in state.items() if first[id(tensor)] != name}


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
    distinct = {id(ids): ids for ids, _ in flow.slots.values()}  # many slots have the same
    while True:
        roots_of = {key: flow.coupling.roots(ids) for key, ids in distinct.items()}
        created: dict[str, list[int]] = {}
        seen = {PINNED}
        # A layer has the name of a weight rather than of something that is added or multiplied.
        slots = sorted(flow.slots.items(), key=lambda each: each[0][0] in flow.entered)
        for (tensor, _), (ids, owned) in slots:
            if owned:
                present = dict.fromkeys(roots_of[id(ids)])
                new = [root for root in present if root not in seen]
                module = tensor.rpartition(".")[0]
                if new or module not in created:
                    created[tensor if module in created else module] = new
                seen.update(new)
        layers = {name: roots for name, roots in created.items() if len(roots) > 1}
        wholes = [set(roots) for roots in layers.values()]
        unsafe = [
            ids
            for key, ids in distinct.items()
            if PINNED not in (roots := set(roots_of[key]))
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
