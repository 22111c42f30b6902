"""What samples look like, for those who have none at hand: in a run's `inputs.json`, in a server's
invitation to its workers, and in a file for a server without data.

    {"shape": [1, 28, 28], "kind": "uint8", "mean": [0.29], "std": [0.35], "classes": ["a", "b"]}

`kind` is the type of the inputs, in a file by default that of images. `mean` and `std` normalise
inputs by channel and may be left out. `classes` may be a number if the classes have no names.
Where targets are no classes, `targets` says what they are and `outputs` how many numbers the model
gives for a sample. Where an input is several tensors, `parts` says what each of them is:

    {"parts": {"left": {"shape": [3], "kind": "float32"}, "right": {"shape": [5], "kind": "int64"}},
     "targets": {"shape": [], "kind": "float32"}, "outputs": 1}

`columns` are the names of the columns of a table, `{"": ["age", "bmi"]}`, and with several tensors
those of each part that is a table. It may be left out: arrays have no names.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adaptcl.data.frame_columns import Columns
from adaptcl.data.samples import SEVERAL, Samples
from adaptcl.errors import DataError, RunFolderError
from adaptcl.units.tensors import Tensors

DESCRIBED = "inputs:"  # prefix of the path of a description
BY_WORKERS = "workers"  # in place of a path: workers describe their data before the run

_KINDS = ("uint8", "int64", "bool", "float16", "bfloat16", "float32", "float64")
"""Types of numbers that samples can have."""
_DIMENSIONS = 8
_NUMBERS = 2**26  # in one input: as many as an image of 4,700×4,700 pixels in colour
_CLASSES = 2**16
_NAME = 1000


@dataclass(frozen=True)
class Form:
    """Shape and type of one tensor of a sample."""

    shape: tuple[int, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)}"


Forms: TypeAlias = Form | tuple[Form, ...] | Mapping[str, Form]
LABEL = Form((), "int64")  # one class number


def forms_of(tensors: Tensors) -> Forms:
    """The forms of samples, of which the first dimension counts how many there are."""

    def form(tensor: Tensor) -> Form:
        return Form(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))

    forms: Forms = _mapped(form, tensors)
    return forms


def _mapped(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with `function` of each tensor or form in it."""
    if isinstance(structure, Mapping):
        return {name: function(each) for name, each in structure.items()}
    return tuple(map(function, structure)) if isinstance(structure, tuple) else function(structure)


def forms_in_words(forms: Forms) -> str:
    if isinstance(forms, Form):
        return str(forms)
    if isinstance(forms, Mapping):
        return ", ".join(f"{name} {form}" for name, form in forms.items())
    return ", ".join(map(str, forms))


@dataclass(frozen=True)
class SampleForm:
    """What each sample is that a model was trained on: its inputs, its targets and its classes."""

    shape: tuple[int, ...]  # shape of one input; empty if it is several tensors
    kind: str
    """`uint8` images, `float32` numbers, `int64` numbers such as tokens, or `several tensors`."""
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    """Normalisation by channel, of images scaled to [0, 1]; None if there is none."""
    classes: tuple[str, ...]
    """Name of the class of each score; empty if classes have no names, or if there are none."""
    parts: Forms | None = None  # what the tensors of an input are, if it is several
    targets: Forms = LABEL
    outputs: int = 0
    """How many numbers a model gives for a sample, or for each of its places; 0 if it is one for
    each class, or not known."""
    columns: Columns | None = None
    """The names of the columns of each input that came from a frame, in the order of the model."""

    @classmethod
    def of(cls, samples: Samples, classes: tuple[str, ...] = (), outputs: int = 0) -> SampleForm:
        parts = None if isinstance(samples.example, Tensor) else forms_of(samples.example)
        return cls(
            samples.shape,
            samples.kind,
            samples.mean,
            samples.std,
            classes,
            parts,
            forms_of(samples.targets),
            0 if classes else outputs,
            samples.columns or None,
        )

    @property
    def width(self) -> int:
        """How many numbers the model gives; 0 if that is not known."""
        return self.outputs or len(self.classes)

    @property
    def inputs(self) -> Forms:
        return Form(self.shape, self.kind) if self.parts is None else self.parts

    def to_json(self) -> dict[str, Any]:
        """The object written to `inputs.json`; what is usual is left out."""
        values = dataclasses.asdict(self)
        usual = {"parts": None, "targets": dataclasses.asdict(LABEL), "outputs": 0, "columns": None}
        return {k: v for k, v in values.items() if k not in usual or v != usual[k]}

    @classmethod
    def from_json(cls, values: Any) -> SampleForm:
        try:
            return read_inputs(values)
        except OddError as odd:
            raise RunFolderError(f"inputs.json does not describe inputs: {odd}") from None


class OddError(Exception):
    """What is wrong with a description: the name of a field, and its value."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"{name} is {value!r:.50}")
        self.name = name
        self.value = value


def read_inputs(values: Any) -> SampleForm:
    """A description out of JSON, of which everything is checked: it may come from another machine,
    and decides the size of the model that is built for it."""
    required = {"shape", "kind", "mean", "std", "classes"}
    _check("inputs", values, isinstance(values, dict) and required <= values.keys())
    more = values.keys() - required - {"parts", "targets", "outputs", "columns"}
    _check("inputs", sorted(values), not more)
    kind, mean, std, classes = (values[name] for name in ("kind", "mean", "std", "classes"))
    _check("kind", kind, kind == SEVERAL or kind in _KINDS)
    parts = None if values.get("parts") is None else _forms("parts", values["parts"])
    _check("parts", values.get("parts"), parts is None or kind == SEVERAL)
    shape = _shape("shape", values["shape"])
    is_other = (kind == "uint8" and len(shape) != 3) or (kind == SEVERAL and bool(shape))
    _check("shape", values["shape"], not is_other)
    _check("std", std, (mean is None) == (std is None))
    if mean is not None:
        is_scaled = kind == "uint8" or kind.startswith("float")
        _check("mean", mean, bool(shape) and is_scaled)
        mean, std = _by_channel("mean", mean, shape[0]), _by_channel("std", std, shape[0])
        _check("std", std, min(std) > 0)
    outputs = values.get("outputs", 0)
    _check("outputs", outputs, type(outputs) is int and 0 <= outputs <= _NUMBERS)
    targets = _forms("targets", values["targets"]) if "targets" in values else LABEL
    is_list = isinstance(classes, list) and len(classes) <= _CLASSES
    _check("classes", classes, is_list and all(map(_is_text, classes)))
    columns = _columns(values.get("columns"), Form(shape, kind) if parts is None else parts)
    return SampleForm(shape, kind, mean, std, tuple(classes), parts, targets, outputs, columns)


def _check(name: str, value: object, fits: bool) -> None:
    if not fits:
        raise OddError(name, value)


def _forms(name: str, value: Any) -> Forms:
    def form(each: Any) -> Form:
        _check(name, value, isinstance(each, dict) and set(each) == {"shape", "kind"})
        _check("kind", each["kind"], each["kind"] in _KINDS)
        return Form(_shape(name, each["shape"]), each["kind"])

    if isinstance(value, dict) and set(value) == {"shape", "kind"}:
        return form(value)
    _check(name, value, isinstance(value, dict | list) and 1 <= len(value) <= _DIMENSIONS**2)
    if isinstance(value, list):
        return tuple(map(form, value))
    _check(name, value, all(map(_is_text, value)))
    return {part: form(each) for part, each in value.items()}


def _columns(value: Any, inputs: Forms) -> Columns | None:
    """The names of columns, one for each column of an input that is a table."""
    if value is None:
        return None
    tables = inputs if isinstance(inputs, Mapping) else {"": inputs}
    _check("columns", value, isinstance(value, dict) and value.keys() <= tables.keys())
    for place, names in value.items():
        form = tables[place]
        fits = isinstance(names, list) and isinstance(form, Form) and form.shape == (len(names),)
        fits = fits and all(map(_is_text, names)) and len({*names}) == len(names)
        _check("columns", names, fits)
    return {place: tuple(names) for place, names in value.items()} or None


def _shape(name: str, value: Any) -> tuple[int, ...]:
    is_short = isinstance(value, list) and len(value) <= _DIMENSIONS
    fits = is_short and all(type(each) is int and 1 <= each <= _NUMBERS for each in value)
    _check(name, value, fits and math.prod(value) <= _NUMBERS)
    return tuple(value)


def _by_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    fits = isinstance(value, list) and len(value) == channels
    # Whole numbers of any length are finite, but no float.
    numbers = fits and all(type(each) in (int, float) and abs(each) < 1e30 for each in value)
    _check(name, value, numbers)
    return tuple(float(each) for each in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _NAME


def read_description(path: Path) -> SampleForm:
    """Read the description in a file, and refuse one that cannot be of samples."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise DataError(f"{path} is not a JSON file: {error}.") from None
    if not isinstance(values, dict) or not values.keys() & {"shape", "parts"}:
        raise DataError(f"{path} must hold a JSON object with a `shape`.")
    several = {"shape": [], "kind": SEVERAL} if "parts" in values else {"kind": "uint8"}
    values = {**several, "mean": None, "std": None, "classes": [], **values}
    count = values["classes"]
    if type(count) is int and 1 <= count <= _CLASSES:
        values["classes"] = list(map(str, range(count)))
    try:
        known = read_inputs(values)
    except OddError as odd:
        raise DataError(f"{path}: {odd}, which cannot be.") from None
    if not known.width:
        raise DataError(f"{path}: it must have `classes`, or `outputs` where there are none.")
    return known


def made_up(known: SampleForm) -> Samples:
    """Two samples of this form, to trace and to try a model with."""
    generator = torch.Generator().manual_seed(0)

    def inputs(form: Form) -> Tensor:
        shape = (2, *form.shape)
        if form.kind == "uint8":
            return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        if form.kind in ("int64", "bool"):  # any table has a row 0, and a mask shows something
            return torch.full(shape, form.kind == "bool", dtype=getattr(torch, form.kind))
        return torch.randn(shape, generator=generator).to(getattr(torch, form.kind))

    def targets(form: Form) -> Tensor:
        kind = getattr(torch, form.kind)  # there is a class 0, and a number 1 with any loss
        return torch.full((2, *form.shape), kind.is_floating_point, dtype=kind)

    made = _mapped(inputs, known.inputs), _mapped(targets, known.targets)
    return Samples(*made, known.mean, known.std, columns=known.columns or {})
