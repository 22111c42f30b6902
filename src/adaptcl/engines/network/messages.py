"""What server and worker say to each other, and how it becomes a frame and back.

The server invites a worker that has come, gives it tasks, and tells it when all is over; the
worker answers each. Whoever reads trusts nothing: a task is checked by the worker, an update by
the server, first here for its form and then by `adaptcl.engines.network.gate` for its sense.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from adaptcl.codecs.codec import Payload
from adaptcl.data.samples import Inputs
from adaptcl.engines.network.frames import Frame, pack_kept, printable, unpack_kept
from adaptcl.engines.network.invitation import read_inputs, read_outline
from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.settings import build
from adaptcl.training import Cut, Pruning, Recipe, Task, Update
from adaptcl.units import State, UnitMap

INVITE, TASK, END = "query.invite", "train.task", "query.end"
"""The kinds of messages from server to worker, as Flower's message types."""

_STATE, _PAYLOAD, _KEPT, _IMPORTANCE = "state:", "payload:", "kept", "importance"
_DISMISSAL = "dismissed"
_LARGEST = 1e30
"""Of a loss around a pruning; the two are compared, and their difference must be a number too."""


@dataclass(frozen=True)
class Invitation:
    """What a worker has to know to take part in a run."""

    run: str
    """The name of the run; a worker's memory belongs to one run."""
    worker: int
    fingerprint: str
    """Of the server's model; the worker's own must be the same."""
    settings: Mapping[str, Any]
    inputs: Inputs
    """What the server's model takes; the worker's data are made to fit."""
    outline: Mapping[str, str]
    """What the modules and tensors of the server's model are."""

    def frame(self) -> Frame:
        """As it travels."""
        return Frame(dataclasses.asdict(self), {})

    @classmethod
    def read(cls, frame: Frame) -> Invitation:
        """From what the server sent; an error where it was a dismissal."""
        if _DISMISSAL in frame.header:
            reason = printable(str(frame.header[_DISMISSAL]))
            raise AdaptCLError(f"The server has dismissed this worker: {reason}")
        try:
            invitation = cls(**frame.header)
        except TypeError:
            raise AdaptCLError(
                "The server's invitation cannot be understood; is it another version of AdaptCL?"
            ) from None
        texts = isinstance(invitation.run, str) and isinstance(invitation.fingerprint, str)
        if (
            not texts
            or not isinstance(invitation.settings, dict)
            or not _is_whole(invitation.worker)
        ):
            raise AdaptCLError("The server's invitation is not one.")
        return dataclasses.replace(
            invitation,
            inputs=read_inputs(invitation.inputs),
            outline=read_outline(invitation.outline),
        )


def dismissal(reason: str) -> Frame:
    """What a worker gets in place of an invitation that takes part no longer; it ends with the
    reason, for its owner to read."""
    return Frame({_DISMISSAL: reason}, {})


@dataclass(frozen=True)
class Answer:
    """A worker's answer to an invitation or a task it could not carry out."""

    fingerprint: str = ""
    error: str = ""

    def frame(self) -> Frame:
        """As it travels."""
        return Frame(dataclasses.asdict(self), {})

    @classmethod
    def read(cls, frame: Frame) -> Answer:
        """From what a worker sent."""
        values = {name: frame.header.get(name, "") for name in ("fingerprint", "error")}
        if not all(isinstance(value, str) for value in values.values()):
            raise UpdateError("An answer holds something that is not a text.")
        return cls(**{name: printable(value) for name, value in values.items()})


@dataclass(frozen=True)
class WorkerReport:
    """An update before it is decoded: everything but its tensors, the payload, and the time."""

    header: Update
    payload: Payload
    seconds: float
    """How long the worker says it trained."""


def task_frame(task: Task, used: int | None = None) -> Frame:
    """A task as it travels, with the round of its worker's latest update that was used (0 if none
    was yet), where that is known: what its codec had sent by a later one did not count."""
    tensors = {_STATE + name: tensor for name, tensor in task.state.items()}
    tensors[_KEPT] = pack_kept(task.kept)
    pruning = None
    if task.pruning is not None:
        pruning = {
            "rate": task.pruning.rate,
            "order": task.pruning.order,
            "min_retention": task.pruning.min_retention,
            "width_multiple": task.pruning.width_multiple,
        }
        if task.pruning.importance is not None:
            tensors[_IMPORTANCE] = task.pruning.importance
    header = {
        "worker": task.worker,
        "round": task.round,
        "recipe": dataclasses.asdict(task.recipe),
        "pruning": pruning,
        "lasso": task.lasso,
        "carries_fractions": task.carries_fractions,
        "used": used,
    }
    return Frame(header, tensors)


def read_task(frame: Frame, units: UnitMap) -> Task:
    """A task from what the server sent."""
    tensors = dict(frame.tensors)
    header = frame.header
    try:
        kept = unpack_kept(tensors.pop(_KEPT), units.count)
        importance = tensors.pop(_IMPORTANCE, None)
        pruning = header["pruning"]
        return Task(
            worker=_whole(header, "worker"),
            round=_whole(header, "round"),
            state=_without_prefix(tensors, _STATE),
            kept=kept,
            recipe=build(Recipe, header["recipe"]),
            pruning=None
            if pruning is None
            else Pruning(
                _finite(pruning, "rate"),
                str(pruning["order"]),
                importance,
                _finite(pruning, "min_retention"),
                _multiple(pruning),
            ),
            lasso=_lasso(header),
            carries_fractions=header.get("carries_fractions") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UpdateError(f"The server's task cannot be understood: {error!r}.") from None


def read_used(frame: Frame, task: Task) -> int | None:
    """The round of this worker's latest update that the server has used; None before the first."""
    used = frame.header.get("used")
    if used is not None and (not _is_whole(used) or used >= task.round):
        raise _odd("used", used)
    return used


def _multiple(pruning: Mapping[str, Any]) -> int:
    multiple = pruning["width_multiple"]
    if type(multiple) is not int or multiple < 1:
        raise ValueError(f"width_multiple is {multiple!r:.50}")
    return multiple


def update_frame(update: Update, payload: Payload, seconds: float) -> Frame:
    """An update as it travels."""
    tensors = {_PAYLOAD + name: tensor for name, tensor in payload.tensors.items()}
    tensors[_KEPT] = pack_kept(update.kept)
    header = {
        "worker": update.worker,
        "round": update.round,
        "samples": update.samples,
        "loss": update.loss,
        "cut": None if update.cut is None else dataclasses.asdict(update.cut),
        "lasso": update.lasso,
        "seconds": seconds,
    }
    return Frame(header, tensors)


def read_update(frame: Frame, units: UnitMap) -> WorkerReport:
    """An update from what a worker sent; its tensors are still to be decoded and checked."""
    if frame.header.get("error"):
        kind = Answer.read(frame).error
        raise UpdateError(f"it could not carry out its task ({kind}); its own log says more.")
    tensors = dict(frame.tensors)
    if _KEPT not in tensors:
        raise UpdateError("An update lacks its kept units.")
    kept = unpack_kept(tensors.pop(_KEPT), units.count)
    # That training has diverged is said best by who checks the whole update.
    loss = _number(frame.header, "loss")
    header = Update(
        worker=_whole(frame.header, "worker"),
        round=_whole(frame.header, "round"),
        state={},
        kept=kept,
        samples=_whole(frame.header, "samples"),
        loss=loss,
        cut=_cut(frame.header.get("cut")) if math.isfinite(loss) else None,
        lasso=_lasso(frame.header) if math.isfinite(loss) else None,
    )
    seconds = max(0.0, _finite(frame.header, "seconds"))
    return WorkerReport(header, Payload(_without_prefix(tensors, _PAYLOAD)), seconds)


def _cut(values: Any) -> Cut | None:
    if values is None:
        return None
    cut = Cut(*(_finite(values, each.name) for each in dataclasses.fields(Cut)))
    for name, value in dataclasses.asdict(cut).items():
        least, most = (0, 1 + 1e-6) if name == "importance_lost" else (-_LARGEST, _LARGEST)
        if not least <= value <= most:
            raise _odd(name, value)
    return cut


def _lasso(values: Mapping[str, Any]) -> float | None:
    if values.get("lasso") is None:
        return None
    found = _finite(values, "lasso")
    if found < 0:
        raise _odd("lasso", found)
    return found


def _without_prefix(tensors: State, prefix: str) -> State:
    for name in tensors:
        if not name.startswith(prefix):
            raise UpdateError(f"A message holds {name!r:.200}, which has no place in it.")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


# Numbers, of which JSON knows more kinds than there is use for: true and false, which Python takes
# for numbers, whole numbers of any length, and such as are not finite.


def _is_whole(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if not _is_whole(value):
        raise _odd(name, value)
    return value


def _number(values: Any, name: str) -> float:
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _odd(name, value)
    try:
        return float(value)
    except OverflowError:
        raise _odd(name, value) from None


def _finite(values: Any, name: str) -> float:
    number = _number(values, name)
    if not math.isfinite(number):
        raise _odd(name, number)
    return number


def _odd(name: str, value: object) -> UpdateError:
    return UpdateError(f"A message says that {name} is {value!r:.50}.")
