"""What samples look like, for those who have none at hand: in a run's `inputs.json`, in a server's
invitation to its workers, and in a file for a server without data.

    {"shape": [1, 28, 28], "kind": "uint8", "mean": [0.29], "std": [0.35], "classes": ["a", "b"]}

`kind` is the type of the inputs, in a file by default that of images. `mean` and `std` normalise
inputs by channel and may be left out. `classes` may be a number if the classes have no names.
Where targets are no classes, `targets` says what they are and `outputs` how many numbers the model
gives for a sample. Where an input is several tensors, `parts` says what each of them is:

    {"parts": {"left": {"shape": [3], "kind": "float32"}, "right": {"shape": [5], "kind": "int64"}},
     "targets": {"shape": [], "kind": "float32"}, "outputs": 1}
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

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
    if isinstance(tensors, Mapping):
        return {name: _form_of(tensor) for name, tensor in tensors.items()}
    return _form_of(tensors) if isinstance(tensors, Tensor) else tuple(map(_form_of, tensors))


def _form_of(tensor: Tensor) -> Form:
    return Form(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))


def forms_in_words(forms: Forms) -> str:
    if isinstance(forms, Form):
        return str(forms)
    if isinstance(forms, Mapping):
        return ", ".join(f"{name} {form}" for name, form in forms.items())
    return ", ".join(map(str, forms))


@dataclass(frozen=True)
class Inputs:
    """The samples that a model was trained on, for those who train it elsewhere or use it later."""

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

    @classmethod
    def of(cls, samples: Samples, classes: tuple[str, ...] = (), outputs: int = 0) -> Inputs:
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
        )

    @property
    def width(self) -> int:
        """How many numbers the model gives; 0 if that is not known."""
        return self.outputs or len(self.classes)

    @property
    def inputs(self) -> Forms:
        """The forms of inputs."""
        return Form(self.shape, self.kind) if self.parts is None else self.parts

    def to_json(self) -> dict[str, Any]:
        """The object written to `inputs.json`; what is usual is left out."""
        values = dataclasses.asdict(self)
        usual = {"parts": None, "targets": dataclasses.asdict(LABEL), "outputs": 0}
        return {k: v for k, v in values.items() if k not in usual or v != usual[k]}

    @classmethod
    def from_json(cls, values: Any) -> Inputs:
        """Read the object that `to_json` wrote, and refuse anything else."""
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


def read_inputs(values: Any) -> Inputs:
    """A description out of JSON, of which everything is checked: it may come from another machine,
    and decides the size of the model that is built for it."""
    required = {"shape", "kind", "mean", "std", "classes"}
    if not isinstance(values, dict) or not required <= values.keys():
        raise OddError("inputs", values)
    if values.keys() - required - {"parts", "targets", "outputs"}:
        raise OddError("inputs", sorted(values))
    parts = None if values.get("parts") is None else _forms("parts", values["parts"])
    shape, kind = _shape("shape", values["shape"]), values["kind"]
    if kind != SEVERAL:
        _check_kind(kind)
        if parts is not None:
            raise OddError("parts", values["parts"])
    if (kind == "uint8" and len(shape) != 3) or (kind == SEVERAL and shape):
        raise OddError("shape", values["shape"])
    mean, std = values["mean"], values["std"]
    if (mean is None) != (std is None):
        raise OddError("std", std)
    if mean is not None:
        if not shape or not (kind == "uint8" or kind.startswith("float")):
            raise OddError("mean", mean)
        mean, std = _by_channel("mean", mean, shape[0]), _by_channel("std", std, shape[0])
        if min(std) <= 0:
            raise OddError("std", std)
    outputs = values.get("outputs", 0)
    if type(outputs) is not int or not 0 <= outputs <= _NUMBERS:
        raise OddError("outputs", outputs)
    targets = _forms("targets", values["targets"]) if "targets" in values else LABEL
    return Inputs(shape, kind, mean, std, _names(values["classes"]), parts, targets, outputs)


def _forms(name: str, value: Any) -> Forms:
    if isinstance(value, dict) and set(value) == {"shape", "kind"}:
        return _form(name, value)
    if isinstance(value, dict) and 1 <= len(value) <= _DIMENSIONS**2:
        if not all(_is_text(each) for each in value):
            raise OddError(name, value)
        return {part: _form(name, each) for part, each in value.items()}
    if isinstance(value, list) and 1 <= len(value) <= _DIMENSIONS**2:
        return tuple(_form(name, each) for each in value)
    raise OddError(name, value)


def _form(name: str, value: Any) -> Form:
    if not isinstance(value, dict) or set(value) != {"shape", "kind"}:
        raise OddError(name, value)
    _check_kind(value["kind"])
    return Form(_shape(name, value["shape"]), value["kind"])


def _check_kind(kind: Any) -> None:
    if not isinstance(kind, str) or kind not in _KINDS:
        raise OddError("kind", kind)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > _DIMENSIONS
        or not all(type(each) is int and 1 <= each <= _NUMBERS for each in value)
        or math.prod(value) > _NUMBERS
    ):
        raise OddError(name, value)
    return tuple(value)


def _by_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    if (
        not isinstance(value, list)
        or len(value) != channels
        # Whole numbers of any length are finite, but no float.
        or not all(type(each) in (int, float) and abs(each) < 1e30 for each in value)
    ):
        raise OddError(name, value)
    return tuple(float(each) for each in value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _CLASSES or not all(map(_is_text, value)):
        raise OddError("classes", value)
    return tuple(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _NAME


def read_description(path: Path) -> Inputs:
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
    usual = {**several, "mean": None, "std": None, "classes": []}
    try:
        known = read_inputs(usual | _named(values))
    except OddError as odd:
        raise DataError(f"{path}: {odd}, which cannot be.") from None
    if not known.width:
        raise DataError(f"{path}: it must have `classes`, or `outputs` where there are none.")
    return known


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the names of classes, where only their number is given."""
    count = values.get("classes")
    if type(count) is not int or not 1 <= count <= _CLASSES:
        return values
    return {**values, "classes": list(map(str, range(count)))}


def made_up(known: Inputs) -> Samples:
    """Two samples of this form, to trace and to try a model with."""
    dice = torch.Generator().manual_seed(0)

    def inputs(form: Form) -> Tensor:
        shape = (2, *form.shape)
        if form.kind == "uint8":
            return torch.randint(256, shape, generator=dice, dtype=torch.uint8)
        if form.kind in ("int64", "bool"):  # any table has a row 0, and a mask shows something
            return torch.full(shape, form.kind == "bool", dtype=getattr(torch, form.kind))
        return torch.randn(shape, generator=dice).to(getattr(torch, form.kind))

    def targets(form: Form) -> Tensor:
        kind = getattr(torch, form.kind)  # there is a class 0, and a number 1 with any loss
        return torch.full((2, *form.shape), kind.is_floating_point, dtype=kind)

    return Samples(
        _made(inputs, known.inputs), _made(targets, known.targets), known.mean, known.std
    )


def _made(make: Any, forms: Forms) -> Any:
    if isinstance(forms, Form):
        return make(forms)
    if isinstance(forms, Mapping):
        return {name: make(form) for name, form in forms.items()}
    return tuple(map(make, forms))
