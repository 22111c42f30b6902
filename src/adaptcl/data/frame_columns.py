"""Columns of frames: matched by their names, since two tables may have them in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from adaptcl.data.columns import is_frame, refuse_repeated_columns
from adaptcl.errors import DataError, listed
from adaptcl.units.tensors import Tensors

Columns = Mapping[str, tuple[str, ...]]
"""The names of the columns of each input that came from a frame; a lone input has the key ""."""

TARGET_NAMES = ("labels", "label", "targets", "target", "class", "y")
"""What a frame, or a dictionary, may call its targets."""


def inputs_and_target(frame: Any) -> tuple[Any, Any]:
    """The columns of the inputs, and that of the target."""
    refuse_repeated_columns(frame)
    name = _target_in(frame)
    if name is None:
        raise DataError(
            f"The frame has the columns {listed(map(str, frame.columns))}, but none called "
            f"{', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}; give a pair (frame, labels), "
            "or rename the column of the targets."
        )
    return _without(frame, name), frame[name]


def without_target(frame: Any, inputs: Sequence[str] = ()) -> Any:
    """The frame without the column of its target, if it has one that is none of these inputs."""
    name = _target_in(frame, inputs)
    return frame if name is None else _without(frame, name)


def _target_in(frame: Any, inputs: Sequence[str] = ()) -> str | None:
    names = {str(each) for each in frame.columns} - {*inputs}
    return next((each for each in TARGET_NAMES if each in names), None)


def _without(frame: Any, name: str) -> Any:
    return frame[[each for each in frame.columns if str(each) != name]]


def columns_of(inputs: Tensors, sources: Iterable[Any]) -> Columns:
    """The names of the columns, by what each tensor of the inputs was made from."""
    places = inputs if isinstance(inputs, Mapping) else [""]
    return {
        place: tuple(map(str, source.columns))
        for place, source in zip(places, sources, strict=False)
        if is_frame(source)
    }


def orders_of_columns(found: Columns, wanted: Columns, whose: str, of: str) -> dict[str, Tensor]:
    """Where each frame has the columns in the wanted order, if its own is another.

    A frame that lacks some, or has more, is refused.
    """
    orders = {}
    for place in found.keys() & wanted.keys():
        mine, first = found[place], wanted[place]
        if mine == first:
            continue
        if differences := _differences(mine, first):
            raise DataError(
                f"{whose} cannot be used: of the columns that {of} has, its frame {differences}."
            )
        place_of = {name: number for number, name in enumerate(mine)}
        orders[place] = torch.tensor([place_of[name] for name in first])
    return orders


def other_columns(found: Columns, wanted: Columns) -> str:
    """In which columns a frame differs from the wanted ones, in words; empty if in none."""
    apart = (_differences(found[place], wanted[place]) for place in found.keys() & wanted.keys())
    return next(filter(None, apart), "")


def _differences(mine: Sequence[str], wanted: Sequence[str]) -> str:
    lacking = [repr(name) for name in wanted if name not in set(mine)]
    besides = [repr(name) for name in mine if name not in set(wanted)]
    differences = [f"lacks {listed(lacking)}"] if lacking else []
    differences += [f"has {listed(besides)} besides"] if besides else []
    return " and ".join(differences)


def in_order(inputs: Tensors, orders: Mapping[str, Tensor]) -> Tensors:
    """The inputs with their columns in these orders."""

    def ordered(place: str, tensor: Tensor) -> Tensor:
        order = orders.get(place)
        return tensor if order is None else tensor.index_select(1, order.to(tensor.device))

    if isinstance(inputs, Mapping):
        return {name: ordered(name, each) for name, each in inputs.items()}
    return ordered("", inputs) if isinstance(inputs, Tensor) else inputs
