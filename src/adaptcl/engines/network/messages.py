"""Tasks and updates as frames, and back.

Neither side trusts the other. Here the worker checks the form of a task, and the server the form of
an update. `gate.py` checks whether an update makes sense for its task.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from adaptcl.codecs.codec import Codec, Payload, Reader
from adaptcl.engines.network.frames import (
    LARGEST,
    Frame,
    is_number,
    is_whole_number,
    pack_kept,
    printable,
    unpack_kept,
)
from adaptcl.engines.network.invitation import Reply
from adaptcl.errors import UpdateError
from adaptcl.settings import build
from adaptcl.training import Pruning, PruningCost, Recipe, Task, Update, WorkerTest
from adaptcl.training.divergence import first_not_finite
from adaptcl.training.wire import (
    HeldFrozenTensors,
    LackingError,
    SentFrozenTensors,
    decode_model,
    frozen_tensors,
)
from adaptcl.units import Kept, State, UnitMap
from adaptcl.units.cut import blank

DESCRIBE, INVITE, TASK, END = "query.describe", "query.invite", "train.task", "query.end"
WAIT = "query.wait"
"""The kinds of messages from server to worker, as Flower's message types."""

JUDGED_LATER = "which of the two is right is judged when all are there"

_STATE, _FROZEN, _PAYLOAD = "state:", "frozen:", "payload:"
_KEPT, _IMPORTANCE = "kept", "importance"


def task_frame(
    task: Task, model: Payload, used: int, frozen: SentFrozenTensors | None = None
) -> Frame:
    """A task, with its encoded model and the round of its worker's latest update that was `used` (0
    before the first). From that the worker's codec knows which of its later updates never counted.
    """
    tensors = {_STATE + name: tensor for name, tensor in model.tensors.items()}
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
        "lasso": task.lasso_lambda,
        "is_sparse": task.is_sparse,
        "carries_fractions": task.carries_fractions,
        "schedule_round": task.schedule_round,
        "only_tests": task.only_tests,
        "used": used,
    }
    if frozen is not None:
        header["frozen"] = frozen.digest
        tensors |= {_FROZEN + name: tensor for name, tensor in frozen.tensors.items()}
    return Frame(header, tensors)


def waiting_frame(worker: int, missing: int, others: int) -> Frame:
    """What a worker hears that is there while so many of the others are missing."""
    return Frame({"worker": worker, "missing": missing, "others": others}, {})


def unlike_frame(difference: str) -> Frame:
    """What a worker hears whose data differ from another's, while it is open who has to change."""
    return Frame({"difference": difference}, {})


def waiting_in_words(frame: Frame) -> str:
    """What a worker prints that is told to wait."""
    if "difference" in frame.header:
        told = printable(str(frame.header["difference"]))
        return f"warning: this worker's data differ from another's: {told}; {JUDGED_LATER}"
    worker, missing, others = (_whole(frame.header, k) for k in ("worker", "missing", "others"))
    whom = "the other one" if others == 1 else f"{missing} of {others} others"
    return f"waiting, as worker {worker}, for {whom}"


def read_frozen(frame: Frame, units: UnitMap) -> HeldFrozenTensors | None:
    """The frozen tensors that a task brings; None if it brings none."""
    brought = {n: tensor for n, tensor in frame.tensors.items() if n.startswith(_FROZEN)}
    if not brought or _KEPT not in frame.tensors:
        return None
    kept = unpack_kept(frame.tensors[_KEPT], units.count)
    reader = Reader(Payload(_without_prefix(brought, _FROZEN), "The server's model"))
    wanted = frozen_tensors(blank(units, kept, torch.device("cpu")), units)
    found = {name: reader.take(name, t.dtype, tuple(t.shape)) for name, t in wanted.items()}
    reader.close()
    _refuse_not_finite(found, units)
    return HeldFrozenTensors(kept, found, units)


def only_frozen(frame: Frame) -> Frame:
    """What `read_frozen` needs of a task."""
    wanted = (_KEPT, _FROZEN)
    return Frame({}, {n: tensor for n, tensor in frame.tensors.items() if n.startswith(wanted)})


def read_task(
    frame: Frame, units: UnitMap, codec: Codec, frozen: HeldFrozenTensors | None = None
) -> Task:
    """A task as the worker trains it; `codec` is the one of the way down.

    `frozen` is what the worker has of the frozen tensors, with this task or from before.
    """
    tensors = {n: tensor for n, tensor in frame.tensors.items() if not n.startswith(_FROZEN)}
    header = frame.header
    try:
        kept = unpack_kept(tensors.pop(_KEPT), units.count)
        importance = tensors.pop(_IMPORTANCE, None)
        pruning = header["pruning"]
        return Task(
            worker=_whole(header, "worker"),
            round=_whole(header, "round"),
            state=_read_model(
                _without_prefix(tensors, _STATE),
                _frozen_part(header, kept, units, frozen),
                kept,
                units,
                codec,
            ),
            kept=kept,
            recipe=build(Recipe, header["recipe"]),
            pruning=None
            if pruning is None
            else Pruning(
                _number(pruning, "rate", 0, 1),
                str(pruning["order"]),
                importance,
                _number(pruning, "min_retention", 0, 1),
                _whole(pruning, "width_multiple", 1),
            ),
            lasso_lambda=_number_if_any(header, "lasso", 0),
            is_sparse=_flag(header, "is_sparse"),
            carries_fractions=_flag(header, "carries_fractions"),
            schedule_round=None
            if header["schedule_round"] is None
            else _whole(header, "schedule_round", 1),
            only_tests=_flag(header, "only_tests"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UpdateError(f"The server's task cannot be understood: {error!r}.") from None


def _frozen_part(
    header: Mapping[str, Any], kept: Kept, units: UnitMap, frozen: HeldFrozenTensors | None
) -> State:
    if not units.unchanging:
        return {}
    if frozen is None:
        raise LackingError("This worker does not have the frozen tensors of its task.")
    return frozen.part(kept, header["frozen"])


def _read_model(tensors: State, frozen: State, kept: Kept, units: UnitMap, codec: Codec) -> State:
    state = decode_model(Payload(tensors, "The server's model"), frozen, kept, units, codec)
    _refuse_not_finite({name: t for name, t in state.items() if name not in frozen}, units)
    return state


def _refuse_not_finite(state: State, units: UnitMap) -> None:
    numbers = {name: tensor for name, tensor in state.items() if name not in units.constants}
    if (odd := first_not_finite(numbers)) is not None:
        raise UpdateError(f"The server's model has numbers in {odd!r} that are not finite.")


def read_used(frame: Frame, task: Task) -> int:
    """The round of this worker's latest update that the server has used; 0 before the first."""
    used = _whole(frame.header, "used")
    if used >= task.round:
        raise _odd("used", used)
    return used


def update_frame(update: Update, payload: Payload) -> Frame:
    tensors = {_PAYLOAD + name: tensor for name, tensor in payload.tensors.items()}
    tensors[_KEPT] = pack_kept(update.kept)
    if update.importance is not None:
        tensors[_IMPORTANCE] = update.importance
    header = {
        "worker": update.worker,
        "round": update.round,
        "samples": update.samples,
        "loss": update.loss,
        "cut": None if update.pruning_cost is None else dataclasses.asdict(update.pruning_cost),
        "lasso": update.lasso_lambda,
        "test": None if update.test is None else dataclasses.asdict(update.test),
        "seconds": update.seconds,
    }
    return Frame(header, tensors)


def read_update(frame: Frame, units: UnitMap) -> tuple[Update, Payload]:
    """An update without its tensors, and the payload that they are to be decoded from."""
    if frame.header.get("error"):
        kind = Reply.read(frame).error
        if kind == LackingError.__name__:
            raise LackingError("it lacks the frozen tensors of its task.")
        raise UpdateError(f"it could not carry out its task ({kind}); its own log says more.")
    tensors = dict(frame.tensors)
    if _KEPT not in tensors:
        raise UpdateError("An update lacks its kept units.")
    kept = unpack_kept(tensors.pop(_KEPT), units.count)
    loss = _loss(frame.header)
    update = Update(
        worker=_whole(frame.header, "worker"),
        round=_whole(frame.header, "round"),
        state={},
        kept=kept,
        samples=_whole(frame.header, "samples"),
        loss=loss,
        pruning_cost=_pruning_cost(frame.header.get("cut")) if math.isfinite(loss) else None,
        importance=tensors.pop(_IMPORTANCE, None),
        lasso_lambda=_number_if_any(frame.header, "lasso", 0) if math.isfinite(loss) else None,
        test=_test(frame.header.get("test")),
        seconds=_number(frame.header, "seconds", 0),
    )
    return update, Payload(_without_prefix(tensors, _PAYLOAD))


def _loss(values: Mapping[str, Any]) -> float:
    """The loss, which need not be finite: whoever checks the whole update says best that training
    has diverged."""
    loss = values.get("loss")
    return loss if isinstance(loss, float) else _number(values, "loss")


def _pruning_cost(values: Any) -> PruningCost | None:
    if values is None:
        return None
    lost = _number(values, "importance_lost", 0, 1 + 1e-6)
    return PruningCost(lost, _number(values, "loss_before"), _number(values, "loss_after"))


def _test(values: Any) -> WorkerTest | None:
    if values is None:
        return None
    metrics = values.get("metrics") if isinstance(values, dict) else None
    if not isinstance(metrics, dict):
        raise _odd("test", values)
    found = {name: _number_if_any(metrics, name) for name in metrics}
    return WorkerTest(_whole(values, "samples"), _number_if_any(values, "loss"), found)


def _without_prefix(tensors: State, prefix: str) -> State:
    for name in tensors:
        if not name.startswith(prefix):
            raise UpdateError(f"A message holds {name!r:.200}, which has no place in it.")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _whole(values: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = values.get(name)
    if not is_whole_number(value) or value < least:
        raise _odd(name, value)
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name)
    if not isinstance(value, bool):
        raise _odd(name, value)
    return value


def _number(values: Any, name: str, least: float = -LARGEST, most: float = LARGEST) -> float:
    value = values.get(name) if isinstance(values, dict) else None
    if not is_number(value, least, most):
        raise _odd(name, value)
    return float(value)


def _number_if_any(values: Mapping[str, Any], name: str, least: float = -LARGEST) -> float | None:
    return None if values.get(name) is None else _number(values, name, least)


def _odd(name: str, value: object) -> UpdateError:
    return UpdateError(f"A message says that {name} is {value!r:.50}.")
