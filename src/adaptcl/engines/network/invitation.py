"""How a worker joins a run: the server's invitation, the worker's answer, and why it may fail.

An invitation decides the size of the model that a worker builds, and what its labels mean. It comes
from another machine, so everything in it is checked when it is read. Server and worker must have
the same model; an outline says where two differ.

The text of an error may hold what is private to the worker, such as the names of files. So the
server gets the whole sentence only where it is about something that both sides have compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from adaptcl import __version__
from adaptcl.data.description import OddError, SampleForm, read_inputs
from adaptcl.engines.network.frames import LARGEST, Frame, is_number, is_whole_number, printable
from adaptcl.errors import AdaptCLError, DataError, SettingError, UpdateError
from adaptcl.training.objectives.objective import Objective
from adaptcl.units import UnitMap

PARTS = 5000  # how many modules and tensors of a model an outline holds at most
TRIED = 64  # how many outputs of a model a trial holds at most
WORDS = 200  # longest name of one of them, and longest description


def fingerprint(model: nn.Module, units: UnitMap) -> str:
    """A short text that differs if modules, tensor shapes or what is frozen differ.

    Values and units do not matter: the server sends them. Whether `forward` is the same, a trial
    shows (see `trial.py`).
    """
    return hashlib.sha256(json.dumps(_parts(model, units)).encode()).hexdigest()[:32]


def outline(model: nn.Module, units: UnitMap) -> dict[str, str]:
    """What the fingerprint is made of, shortened, for a sentence that says where two differ."""
    return {_short(name): _short(words) for name, words in _parts(model, units)[:PARTS]}


def _parts(model: nn.Module, units: UnitMap) -> list[tuple[str, str]]:
    """What each module and tensor is."""
    modules = model.named_modules(remove_duplicate=False)
    return [
        *((name or "the whole", _module(module)) for name, module in modules),
        *((name, _tensor(name, units)) for name in units.shapes),
    ]


def refuse_other_model(
    model: nn.Module, units: UnitMap, their_fingerprint: str, their_outline: Mapping[str, str]
) -> None:
    if fingerprint(model, units) == their_fingerprint:
        return
    where = _difference(outline(model, units), their_outline)
    raise MismatchError(
        f"The worker's model differs from the server's: {where}; both need the same version of it."
    )


def refuse_other_version(frame: Frame) -> None:
    """Refuse a server of another version, before anything else of its message is read."""
    theirs = printable(str(frame.header.get(_VERSION, "of an earlier version")))
    if theirs != __version__:
        raise MismatchError(
            f"The server has AdaptCL {theirs}, but the worker has {__version__}; install the same "
            "version on both."
        )


def objective_in_words(name: str, objective: Objective) -> str:
    """What a model is trained for, as the server and the worker compare it."""
    return f"{name} (by {', '.join(objective.tested)})"


def refuse_other_objective(mine: str, theirs: str) -> None:
    if mine != theirs:
        raise MismatchError(
            f"The server trains for {printable(theirs)}, but the worker for {mine}; start the "
            "worker with the same --objective."
        )


def _difference(worker: Mapping[str, str], server: Mapping[str, str]) -> str:
    for name, words in server.items():
        if name not in worker:
            return f"{name} is {words} at the server and missing at the worker"
        if worker[name] != words:
            return f"{name} is {words} at the server and {worker[name]} at the worker"
    for name, words in worker.items():
        if name not in server:
            return f"{name} is {words} at the worker and missing at the server"
    if list(worker) != list(server):
        return "their modules and tensors are the same, but in another order"
    return f"only after {PARTS} modules and tensors, or after {WORDS} letters of one of them"


def _module(module: nn.Module) -> str:
    return " ".join(f"{type(module).__name__}({module.extra_repr()})".split())


def _tensor(name: str, units: UnitMap) -> str:
    shape = list(units.shapes[name])
    if name in units.tied:
        return f"{units.tied[name]} {shape} again"
    kind = "parameter" if name in units.parameters else "buffer"
    return f"a {'frozen ' * (name in units.frozen)}{kind} {shape}"


def _short(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:WORDS]


class MismatchError(AdaptCLError):
    """What the worker has does not fit what the server asks for.

    Both sides read the sentence. So it says which is whose, and nothing about the data beyond what
    has to fit.
    """


def for_the_server(error: Exception) -> str:
    """What the server may read of an error on a worker."""
    if isinstance(error, MismatchError):
        return str(error)
    what = {DataError: "its data cannot be used", SettingError: "its settings cannot be used"}
    general = (words for kind, words in what.items() if isinstance(error, kind))
    return f"{next(general, 'something failed on it')}; it says there what is wrong."


def for_the_owner(error: Exception) -> AdaptCLError:
    """An unforeseen error as one sentence."""
    words = " ".join([f"{type(error).__name__}: {error}.", *getattr(error, "__notes__", ())])
    return AdaptCLError(f"This worker cannot take part, because something failed: {words}")


_DISMISSAL = "dismissed"
_VERSION = "version"  # in all versions to come, so that they can tell each other apart
_HOLDS = "holds"


@dataclass(frozen=True)
class Invitation:
    """What a worker has to know to take part in a run."""

    run: str  # the run's name, under which a worker keeps its memory
    worker: int
    fingerprint: str  # of the server's model; the worker's model must have the same
    settings: Mapping[str, Any]
    inputs: SampleForm  # what the server's model takes; the worker makes its data fit
    outline: Mapping[str, str]  # what the modules and tensors of the server's model are
    frozen: str = ""  # the hash of its frozen tensors; empty if it has none
    objective: str = "classification (by accuracy)"
    """The server's objective with its metrics, in words; the worker's must be the same."""
    units: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The units of the run; the worker checks them against its model (see `units/as_json.py`)."""
    trial: tuple[float, ...] = ()
    """What the server's model makes of made-up numbers (see `trial.py`), as far as known."""

    def frame(self) -> Frame:
        header = dataclasses.asdict(self) | {"inputs": self.inputs.to_json()}
        return Frame({_VERSION: __version__, **header}, {})

    @classmethod
    def read(cls, frame: Frame) -> Invitation:
        """Read what the server sent; an error if it is a dismissal."""
        if _DISMISSAL in frame.header:
            reason = printable(str(frame.header[_DISMISSAL]))
            raise AdaptCLError(f"The server has dismissed this worker: {reason}")
        refuse_other_version(frame)
        try:
            values = {k: v for k, v in frame.header.items() if k != _VERSION}
            invitation = cls(**values)
            texts = (
                invitation.run,
                invitation.fingerprint,
                invitation.frozen,
                invitation.objective,
            )
            tried = values.get("trial", [])
            if not isinstance(tried, list) or len(tried) > TRIED:
                raise TypeError
            if (
                not all(is_number(each, -LARGEST, LARGEST) for each in tried)
                or not all(isinstance(each, str) for each in texts)
                or not isinstance(invitation.settings, dict)
                or not is_whole_number(invitation.worker)
            ):
                raise TypeError
        except TypeError:
            raise AdaptCLError("The server's invitation cannot be understood.") from None
        return dataclasses.replace(
            invitation,
            inputs=_inputs(invitation.inputs),
            outline=read_outline(invitation.outline),
            trial=tuple(invitation.trial),
        )


@dataclass(frozen=True)
class Question:
    """What a worker hears that is to describe its data. The rest of the invitation follows when all
    have done so, but what a worker must allow is known before: it can refuse at once."""

    objective: str
    settings: tuple[Mapping[str, Any], ...] = ()  # of each run of the job

    def frame(self) -> Frame:
        header = {"objective": self.objective, "settings": list(self.settings)}
        return Frame({_VERSION: __version__, **header}, {})

    @classmethod
    def read(cls, frame: Frame) -> Question:
        refuse_other_version(frame)
        objective, settings = (frame.header.get(name) for name in ("objective", "settings"))
        if not isinstance(objective, str):
            raise _odd("objective", objective)
        if not isinstance(settings, list) or not all(isinstance(each, dict) for each in settings):
            raise _odd("settings", settings)
        return cls(objective, tuple(settings))


def dismissal(reason: str) -> Frame:
    """In place of an invitation: the worker ends, and its owner reads the reason."""
    return Frame({_DISMISSAL: reason}, {})


@dataclass(frozen=True)
class Reply:
    """A worker's answer to an invitation, or to a task that failed."""

    error: str = ""  # why the worker cannot do it; empty if it can
    holds: Tensor | None = None
    """Of which units the worker has the frozen tensors, packed; None if it has none."""

    def frame(self) -> Frame:
        return Frame({"error": self.error}, {} if self.holds is None else {_HOLDS: self.holds})

    @classmethod
    def read(cls, frame: Frame) -> Reply:
        error = frame.header.get("error")
        if not isinstance(error, str):
            raise UpdateError("An answer does not say in a text whether something is wrong.")
        return cls(printable(error), frame.tensors.get(_HOLDS))


def _inputs(value: Any) -> SampleForm:
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
