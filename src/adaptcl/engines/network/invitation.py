"""How a worker joins a run: the server's invitation, and the worker's answer.

An invitation decides the size of the model that a worker builds, and what its labels mean. It comes
from another machine, so everything in it is checked when it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adaptcl.data.description import Inputs, OddError, read_inputs
from adaptcl.engines.network.fingerprint import PARTS, WORDS
from adaptcl.engines.network.frames import Frame, is_whole_number, printable
from adaptcl.errors import AdaptCLError, UpdateError

_DISMISSAL = "dismissed"
_HOLDS = "holds"


@dataclass(frozen=True)
class Invitation:
    """What a worker has to know to take part in a run."""

    run: str  # the run's name, under which a worker keeps its memory
    worker: int
    fingerprint: str  # of the server's model; the worker's model must have the same
    settings: Mapping[str, Any]
    inputs: Inputs  # what the server's model takes; the worker makes its data fit
    outline: Mapping[str, str]  # what the modules and tensors of the server's model are
    frozen: str = ""  # the hash of its frozen tensors; empty if it has none
    objective: str = "classification (by accuracy)"
    """The server's objective with its metrics, in words; the worker's must be the same."""
    units: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The units of the run; the worker checks them against its model (see `shared_units.py`)."""

    def frame(self) -> Frame:
        return Frame(dataclasses.asdict(self) | {"inputs": self.inputs.to_json()}, {})

    @classmethod
    def read(cls, frame: Frame) -> Invitation:
        """Read what the server sent; an error if it is a dismissal."""
        if _DISMISSAL in frame.header:
            reason = printable(str(frame.header[_DISMISSAL]))
            raise AdaptCLError(f"The server has dismissed this worker: {reason}")
        try:
            invitation = cls(**frame.header)
        except TypeError:
            raise AdaptCLError(
                "The server's invitation cannot be understood; is it another version of AdaptCL?"
            ) from None
        texts = (invitation.run, invitation.fingerprint, invitation.frozen, invitation.objective)
        if (
            not all(isinstance(each, str) for each in texts)
            or not isinstance(invitation.settings, dict)
            or not is_whole_number(invitation.worker)
        ):
            raise AdaptCLError(
                "The server's invitation is malformed; it may have another version of AdaptCL."
            )
        return dataclasses.replace(
            invitation,
            inputs=_inputs(invitation.inputs),
            outline=read_outline(invitation.outline),
        )


def dismissal(reason: str) -> Frame:
    """In place of an invitation: the worker ends, and its owner reads the reason."""
    return Frame({_DISMISSAL: reason}, {})


@dataclass(frozen=True)
class Reply:
    """A worker's answer to an invitation, or to a task that failed."""

    fingerprint: str = ""
    error: str = ""
    holds: Tensor | None = None
    """Of which units the worker has the frozen tensors, packed; None if it has none."""

    def frame(self) -> Frame:
        header = {"fingerprint": self.fingerprint, "error": self.error}
        return Frame(header, {} if self.holds is None else {_HOLDS: self.holds})

    @classmethod
    def read(cls, frame: Frame) -> Reply:
        values = {name: frame.header.get(name, "") for name in ("fingerprint", "error")}
        if not all(isinstance(value, str) for value in values.values()):
            raise UpdateError("An answer holds something that is not a text.")
        texts = {name: printable(value) for name, value in values.items()}
        return cls(**texts, holds=frame.tensors.get(_HOLDS))


def _inputs(value: Any) -> Inputs:
    try:
        found = read_inputs(value)
        if not found.width:
            raise OddError("classes", found.classes)
    except OddError as odd:
        raise _odd(odd.name, odd.value) from None
    return found


def read_outline(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > PARTS:
        raise _odd("outline", value)
    for pair in value.items():
        # A terminal shows them, and must not obey them.
        if not all(_is_text(each, WORDS) and each.isprintable() for each in pair):
            raise _odd("outline", pair)
    return dict(value)


def _is_text(value: object, length: int) -> bool:
    return isinstance(value, str) and len(value) <= length


def _odd(name: str, value: object) -> AdaptCLError:
    return AdaptCLError(
        f"The server's invitation gives {name} as {value!r:.50}, which is not allowed."
    )
