"""Units as JSON, for whoever has the same model: workers of a network, and readers of a run.

Units can depend on the data that a model was traced with, as in a mixture of experts. So nobody
traces a model again: the units of a run are those of its server. What belongs to the model itself
is read from the copy of it that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.errors import AdaptCLError
from adaptcl.units.tracing.numbering import without_units
from adaptcl.units.unit_map import FIXED, Axis, Layer, Slot, StoredSize, UnitMap, Work

_STEPS = (0, 1)  # unit numbers repeat or count up, so a few runs of them stand for many
_MOST_DIMENSIONS = 16  # of a tensor that a module works on
_TOO_LARGE = 2**53  # for numbers in JSON: not every program can hold it


def units_to_json(units: UnitMap) -> dict[str, Any]:
    patterns = units.patterns
    vectors = patterns.ids.tensor_split(patterns.ends[:-1])
    return {
        "layers": [[layer.name, len(layer.units)] for layer in units.layers],
        "patterns": [_runs(ids.tolist()) for ids in vectors],
        "slots": [
            [slot.tensor, slot.dim, pattern, slot.owned]
            for slot, pattern in zip(units.slots, patterns.of_slot, strict=True)
        ],
        "work": [[work.weight, work.positions] for work in units.work],
        "bn_scales": sorted(units.bn_scales),
        "alike": sorted(units.alike),
        "steps": sorted(units.step_counters),
        "constants": sorted(units.constants),
        "scale_powers": {
            name: _runs(powers.tolist()) for name, powers in units.scale_powers.items()
        },
        "sizes": [[size.module, size.attribute, _runs(size.ids.tolist())] for size in units.sizes],
        "averages": [[e.module, e.dim, _runs(e.ids.tolist())] for e in units.averages],
        "outputs": [[e.module, e.dim, _runs(e.ids.tolist())] for e in units.outputs],
        "heads": sorted(units.heads),
    }


def units_from_json(value: Any, model: nn.Module) -> UnitMap:
    """The units of this model; an error if they do not fit it."""
    whole = without_units(model)
    try:
        _refuse_repeated(value)
        layers = _layers(value["layers"])
        count = layers[-1].units.stop if layers else 0
        slots = tuple(_slot(each, value["patterns"], whole, count) for each in value["slots"])
        owned = {unit for slot in slots if slot.owned for unit in slot.ids.tolist()}
        if len(owned - {FIXED}) != count:
            raise ValueError("some units own nothing")
        return replace(
            whole,
            layers=layers,
            slots=slots,
            work=tuple(
                Work(_known(weight, whole), _number(often)) for weight, often in value["work"]
            ),
            bn_scales=frozenset(_known(name, whole) for name in value["bn_scales"]),
            alike=frozenset(_known(name, whole) for name in value["alike"]),
            step_counters=frozenset(_known(name, whole) for name in value["steps"]),
            constants=frozenset(_known(name, whole) for name in value["constants"]),
            scale_powers={
                _known(name, whole): _numbers(runs, whole.shapes[name][0], 0, 64)
                for name, runs in value["scale_powers"].items()
            },
            sizes=tuple(_size(each, model, count) for each in value["sizes"]),
            averages=tuple(_axis(each, model, count) for each in value["averages"]),
            outputs=tuple(_axis(each, model, count) for each in value.get("outputs", ())),
            heads=frozenset(layer.name for layer in layers if layer.name in value["heads"]),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise AdaptCLError(
            f"These units do not fit the model: {error!r:.200}; they may be of another model, or "
            "of another version of AdaptCL."
        ) from None


def _refuse_repeated(value: Any) -> None:
    """Each entry makes a tensor, so a short text that repeats one could fill the memory."""
    for name in ("slots", "sizes", "averages", "outputs"):
        places = [(place, where) for place, where, *_ in value.get(name, ())]
        if len(set(places)) < len(places):
            raise ValueError(f"{name} names the same place twice")


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers as runs [first, step, length], each of which repeats a number or counts up."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs:
            first, step, length = runs[-1]
            if length == 1 and number - first in _STEPS:
                runs[-1] = [first, number - first, 2]
                continue
            if length > 1 and number == first + step * length:
                runs[-1][2] += 1
                continue
        runs.append([number, 0, 1])
    return runs


def _numbers(runs: Any, length: int, least: int, end: int) -> Tensor:
    """The numbers of these runs: so many, at least `least` and less than `end`."""
    for first, step, count in runs:
        whole = type(first) is int and type(step) is int and step in _STEPS
        if not whole or not least <= first <= first + step * (_number(count) - 1) < end:
            raise ValueError(f"{[first, step, count]!r:.50} is no run of such numbers")
    if not runs or sum(count for _, _, count in runs) != length:
        raise ValueError(f"there are not {length} numbers")
    return torch.cat([first + step * torch.arange(count) for first, step, count in runs])


def _layers(value: Any) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    start = 0
    for name, count in value:
        if not isinstance(name, str) or _number(count) < 2:
            raise ValueError(f"{[name, count]!r:.50} is no layer")
        layers.append(Layer(name, range(start, start + count)))
        start += count
    return tuple(layers)


def _slot(value: Any, patterns: Any, whole: UnitMap, count: int) -> Slot:
    tensor, dim, pattern, owned = value
    size = whole.shapes[_known(tensor, whole)][_number(dim)]
    ids = _numbers(patterns[_number(pattern)], size, FIXED, count)
    return Slot(tensor, dim, ids, owned is True)


def _size(value: Any, model: nn.Module, count: int) -> StoredSize:
    """A stored size, which must be a number that the model has there."""
    module, attribute, runs = value
    stored = vars(model.get_submodule(module)).get(attribute)
    if type(stored) is not int or stored < 1:
        raise ValueError(f"{module!r:.50} stores no size {attribute!r:.50}")
    return StoredSize(module, attribute, _numbers(runs, stored, FIXED, count))


def _axis(value: Any, model: nn.Module, count: int) -> Axis:
    """A dimension of units; no longer than the model has numbers."""
    module, dim, runs = value
    model.get_submodule(module)
    if type(dim) is not int or not -_MOST_DIMENSIONS <= dim < 0:
        raise ValueError(f"{dim!r:.50} is no dimension from the end")
    length = sum(_number(each) for _, _, each in runs)
    if length > sum(each.numel() for each in model.parameters()):
        raise ValueError(f"{module!r:.50} has no {length} units")
    return Axis(module, dim, _numbers(runs, length, FIXED, count))


def _known(name: Any, whole: UnitMap) -> str:
    if not isinstance(name, str) or name not in whole.shapes:
        raise ValueError(f"the model has no tensor {name!r:.50}")
    return name


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _TOO_LARGE:
        raise ValueError(f"{value!r:.50} is no whole number")
    return value
