"""What a trained model takes: needed by whoever trains it elsewhere or uses it later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptcl.data import Samples
from adaptcl.errors import RunFolderError

_NUMBERS = (int, float, type(None))
_FIELDS = (
    ("shape", (int,), True),
    ("kind", (str,), False),
    ("mean", _NUMBERS, True),
    ("std", _NUMBERS, True),
    ("classes", (str,), True),
)
"""What each is made of, and whether of several."""


@dataclass(frozen=True)
class Inputs:
    """The inputs a model was trained on."""

    shape: tuple[int, ...]
    """Of one input."""
    kind: str
    """`uint8` images, `float32` numbers, or `int64` numbers such as tokens."""
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    """By channel of images scaled to [0, 1], what training normalised them by; None if by
    nothing."""
    classes: tuple[str, ...]
    """What each score is for; empty where classes have no names."""

    @classmethod
    def of(cls, samples: Samples, classes: tuple[str, ...] = ()) -> Inputs:
        """Those of a data set."""
        kind = str(samples.inputs.dtype).removeprefix("torch.")
        return cls(samples.shape, kind, samples.mean, samples.std, classes)

    def to_json(self) -> dict[str, Any]:
        """The object written to `inputs.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Inputs:
        """Read back what `to_json` gave, refusing anything else."""
        try:
            listed = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
            found = cls(**{**values, **listed})
        except (TypeError, AttributeError) as error:
            raise RunFolderError(f"inputs.json does not describe inputs: {error}") from None
        for name, kinds, several in _FIELDS:
            value = getattr(found, name)
            parts = value if several and isinstance(value, tuple) else (value,)
            if not all(type(each) in kinds for each in parts):
                raise RunFolderError(
                    f"inputs.json does not describe inputs: {name} is {value!r:.50}"
                )
        return found
