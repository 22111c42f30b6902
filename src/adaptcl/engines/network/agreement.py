"""What workers tell of their data before a run, where the server knows nothing of them.

Each worker sends the shapes and types of its samples, its classes, the names of the columns of
tables that have them, and for each channel how many numbers there are, their sum and the sum of
their squares. The server makes of these what its own data would tell otherwise: the shape and the
classes that the model is built for, and the mean and the deviation that all workers normalise by.
They are those of all data together. No sample travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from adaptcl.data.description import OddError, SampleForm, forms_in_words, read_inputs
from adaptcl.data.frame_columns import orders_of_columns, other_columns
from adaptcl.data.samples import CHUNK, DataSet, Samples
from adaptcl.engines.network.frames import LARGEST, Frame, is_number, is_whole_number, printable
from adaptcl.engines.network.invitation import Reply
from adaptcl.errors import DataError, UpdateError, name_workers

_ROUNDING = 1e-6
_CONSTANT = 1e-12  # a smaller variance is that of a constant channel, which cannot be normalised


@dataclass(frozen=True)
class LocalStatistics:
    """What a worker tells of its data."""

    inputs: SampleForm
    count: int = 0  # numbers in each channel; 0 if inputs have no channels to normalise
    sums: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()

    @classmethod
    def of(cls, data: DataSet) -> LocalStatistics:
        known = replace(SampleForm.of(data.train, data.classes, data.outputs), mean=None, std=None)
        if not _has_channels(known):
            return cls(known)
        count, sums, squares = _added(data.train)
        return cls(known, count, tuple(sums.tolist()), tuple(squares.tolist()))

    def frame(self) -> Frame:
        sums, squares = list(self.sums), list(self.squares)
        header = {"count": self.count, "sums": sums, "squares": squares}
        return Frame({"inputs": self.inputs.to_json(), **header}, {})

    @classmethod
    def read(cls, frame: Frame) -> LocalStatistics:
        """Read what a worker sent, and refuse what cannot be of any data."""
        if frame.header.get("error"):
            raise UpdateError(Reply.read(frame).error)
        try:
            inputs = read_inputs(frame.header.get("inputs"))
        except OddError as odd:
            raise UpdateError(f"it says of its data that {odd}.") from None
        if not inputs.width or inputs.mean is not None:
            raise UpdateError("it does not say what its targets are, or normalises by itself.")
        count = frame.header.get("count")
        if not is_whole_number(count):
            raise UpdateError(f"it says that count is {count!r:.50}.")
        channels = inputs.shape[0] if _has_channels(inputs) else 0
        sums = _numbers(frame, "sums", channels)
        squares = _numbers(frame, "squares", channels)
        if (count > 0) != (channels > 0) or not all(
            _is_possible(inputs.kind, count, *each) for each in zip(sums, squares, strict=True)
        ):
            raise UpdateError("it sends sums and squares that no numbers have.")
        return cls(inputs, count, sums, squares)


def _has_channels(inputs: SampleForm) -> bool:
    """Whether inputs are images or tables, whose channels and columns are normalised."""
    is_float = inputs.kind.startswith("float")
    return inputs.kind == "uint8" or (is_float and len(inputs.shape) in (1, 3))


def _added(samples: Samples) -> tuple[int, torch.Tensor, torch.Tensor]:
    """How many numbers each channel has, their sums and those of their squares."""
    channels = samples.shape[0]
    sums = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros(channels, dtype=torch.float64)
    for begin in range(0, len(samples), CHUNK):
        stored, _ = samples.stored(torch.arange(begin, min(begin + CHUNK, len(samples))))
        values = stored.transpose(0, 1).reshape(channels, -1).double()
        sums += values.sum(1)
        squares += values.square().sum(1)
    return len(samples) * math.prod(samples.shape[1:]), sums, squares


def _numbers(frame: Frame, name: str, count: int) -> tuple[float, ...]:
    values: Any = frame.header.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise UpdateError(f"it sends other {name} than one for each of {count} channels.")
    if not all(is_number(each, -LARGEST, LARGEST) for each in values):
        raise UpdateError(f"it sends {name} that cannot be added.")
    return tuple(float(each) for each in values)


def _is_possible(kind: str, count: int, total: float, squares: float) -> bool:
    if kind == "uint8" and not 0 <= total <= squares <= 255 * total <= 255 * 255 * count:
        return False
    return total**2 <= count * squares * (1 + _ROUNDING)


def odd_ones_out(found: Mapping[int, LocalStatistics], workers: int) -> dict[int, str]:
    """What is wrong with the workers whose data have another form, or other columns, than those of
    most `workers`; arrays have columns without names, which fit any.

    Where no form has a majority when all have told, the one that most have counts; of two that are
    as frequent, that of the worker with the lowest number.
    """
    is_all = len(found) == workers
    forms = {worker: (each.inputs.inputs, each.inputs.targets) for worker, each in found.items()}
    right = _most_frequent(forms, workers, is_all=is_all)
    if not right:
        return {}
    odd = {
        worker: _other_columns(found, worker, right) or _other_form(found, worker, right)
        for worker in found.keys() - right
    }
    named = {worker: columns for worker in right if (columns := found[worker].inputs.columns)}
    sets = {worker: {k: set(v) for k, v in columns.items()} for worker, columns in named.items()}
    right = _most_frequent(sets, workers, is_all=is_all)
    for worker in named.keys() - right if right else ():
        if reason := _other_columns(found, worker, right):
            odd[worker] = reason
    return dict(sorted(odd.items()))


def _most_frequent(values: Mapping[int, object], workers: int, *, is_all: bool) -> list[int]:
    """The workers with the value that counts; none while that is open."""
    alike: list[list[int]] = []
    for worker, value in sorted(values.items()):  # no dict of groups: a value may not be hashable
        group = next((each for each in alike if values[each[0]] == value), None)
        if group is None:
            alike.append([worker])
        else:
            group.append(worker)
    right = max(alike, key=lambda group: (len(group), -group[0]), default=[])
    return right if is_all or 2 * len(right) > workers else []


def _other_columns(found: Mapping[int, LocalStatistics], odd: int, right: Sequence[int]) -> str:
    """Which columns differ, where the names of both are known."""
    usual = next((worker for worker in right if found[worker].inputs.columns), right[0])
    mine, theirs = (found[worker].inputs.columns or {} for worker in (odd, usual))
    try:
        orders_of_columns(mine, theirs, "its data", f"worker {usual}")
    except DataError as error:
        return f"{printable(str(error))} Start it again with these columns."
    return ""


def _other_form(found: Mapping[int, LocalStatistics], odd: int, right: Sequence[int]) -> str:
    return (
        f"{_forms_apart(found, odd, right)}; all must be equal. Start it again with data of that "
        "form."
    )


def _forms_apart(found: Mapping[int, LocalStatistics], one: int, others: Sequence[int]) -> str:
    mine, theirs = (found[worker].inputs for worker in (one, others[0]))
    what = "inputs" if mine.inputs != theirs.inputs else "targets"
    here, there = (printable(forms_in_words(getattr(each, what))) for each in (mine, theirs))
    return f"its {what} are {here}, those of {name_workers(others)} {there}"


def difference(found: Mapping[int, LocalStatistics], worker: int) -> str:
    """How a worker's data differ from those of another that has told of its own, the first such;
    empty if they fit all. Who of the two has to change is open."""
    mine = found[worker].inputs
    for other in sorted(found.keys() - {worker}):
        theirs = found[other].inputs
        if apart := other_columns(mine.columns or {}, theirs.columns or {}):
            return printable(f"of the columns that worker {other} has, its frame {apart}")
        if (mine.inputs, mine.targets) != (theirs.inputs, theirs.targets):
            return _forms_apart(found, worker, [other])
    return ""


def agreed(found: Mapping[int, LocalStatistics]) -> SampleForm:
    """The description of the data of all workers together, which have one form.

    Columns have the order of the first worker that knows their names.
    """
    in_turn = [found[worker] for worker in sorted(found)]
    begin = next((each for each in in_turn if each.inputs.columns), in_turn[0])
    found = {worker: _in_order(each, begin) for worker, each in found.items()}
    known = replace(
        begin.inputs,
        classes=_all_classes([each.inputs.classes for each in found.values()]),
        outputs=max(each.inputs.outputs for each in found.values()),
    )
    if not begin.count:
        return known
    count = sum(each.count for each in found.values())
    largest = 255 if known.kind == "uint8" else 1
    means, deviations = [], []
    for channel in range(len(begin.sums)):
        mean = math.fsum(each.sums[channel] for each in found.values()) / count
        squares = math.fsum(each.squares[channel] for each in found.values()) / count
        variance = (squares - mean**2) / largest**2
        least = _CONSTANT * max(1.0, squares / largest**2)
        means.append(mean / largest)
        deviations.append(math.sqrt(variance) if variance > least else 1.0)
    return replace(known, mean=tuple(means), std=tuple(deviations))


def _in_order(told: LocalStatistics, first: LocalStatistics) -> LocalStatistics:
    """The statistics with the columns in the order that the first worker has."""
    orders = orders_of_columns(told.inputs.columns or {}, first.inputs.columns or {}, "it", "it")
    if not told.count or "" not in orders:
        return told
    places = orders[""].tolist()
    sums, squares = (tuple(each[n] for n in places) for each in (told.sums, told.squares))
    return replace(told, sums=sums, squares=squares)


def _all_classes(named: list[tuple[str, ...]]) -> tuple[str, ...]:
    longest = max(named, key=len)
    if all(set(names) <= set(longest) for names in named):
        return longest
    return tuple(sorted({name for names in named for name in names}))
