"""Whether server and worker have the same model, and where the two differ.

Also what each side reads when a worker cannot take part. The text of an error may hold what is
private to the worker, such as the names of files. So the server gets the whole sentence only where
it is about something that both sides have compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from torch import nn

from adaptcl.engines.network.frames import printable
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.training.objective import Objective
from adaptcl.units import UnitMap

PARTS = 5000  # how many modules and tensors of a model an outline holds at most
WORDS = 200  # longest name of one of them, and longest description


def fingerprint(model: nn.Module, units: UnitMap) -> str:
    """A short text that differs if modules, tensor shapes or what is frozen differ.

    Values and units do not matter: the server sends them. Two models with the same modules but
    another `forward` look the same here.
    """
    parts = [
        repr(model),
        [[name, list(shape)] for name, shape in units.shapes.items()],
        sorted(units.parameters),
        sorted(units.frozen),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def outline(model: nn.Module, units: UnitMap) -> dict[str, str]:
    """What each module and tensor is, for a sentence that says where two models differ."""
    named = [
        *((name or "the whole", _module(module)) for name, module in model.named_modules()),
        *((name, _tensor(name, units)) for name in units.shapes),
    ]
    return {_short(name): _short(words) for name, words in named[:PARTS]}


def refuse_other_model(
    model: nn.Module, units: UnitMap, their_fingerprint: str, their_outline: Mapping[str, str]
) -> None:
    if fingerprint(model, units) == their_fingerprint:
        return
    where = _difference(outline(model, units), their_outline)
    raise MismatchError(
        f"The worker's model differs from the server's: {where}; both need the same version of it."
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
    return (
        "their modules and tensors are the same, but their printed forms differ; server and worker "
        "may have different versions of PyTorch"
    )


def _module(module: nn.Module) -> str:
    return " ".join(f"{type(module).__name__}({module.extra_repr()})".split())


def _tensor(name: str, units: UnitMap) -> str:
    kind = "frozen tensor" if name in units.frozen else "tensor"
    return f"a {kind} {list(units.shapes[name])}"


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
