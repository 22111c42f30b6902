"""A worker's process: connect, carry out tasks, connect again, until the job is over.

Model and data stay in this process from one task to the next, so a task costs its training and its
bytes. Nothing that comes from the server is run: the owner names models and data, and the server's
settings are checked like a user's.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Codecs
from adaptcl.engines.network.agreement import LocalStatistics
from adaptcl.engines.network.frames import Frame, pack_kept
from adaptcl.engines.network.invitation import (
    Invitation,
    Question,
    Reply,
    for_the_owner,
    for_the_server,
)
from adaptcl.engines.network.keys import WorkerKeys
from adaptcl.engines.network.messages import (
    DESCRIBE,
    END,
    INVITE,
    TASK,
    WAIT,
    read_frozen,
    read_task,
    read_used,
    update_frame,
    waiting_in_words,
)
from adaptcl.engines.network.worker.memory_store import Memories
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node, OccupiedError
from adaptcl.errors import AdaptCLError
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.quantities import duration, short_duration
from adaptcl.training import Recipe, Task, Update
from adaptcl.training.wire import HeldFrozenTensors, digest, encode_update, frozen_tensors
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State

_RETRY_S = 1.0  # seconds between two tries to connect

Prepare = Callable[[Invitation], tuple[Worker, Codecs]]
"""Makes the worker of the run that it is invited to, and the codecs of that run."""

Describe = Callable[[Question], LocalStatistics]
"""Tells of this worker's data, or refuses what the server asks for."""


@dataclass(frozen=True)
class ServerConnection:
    """How to reach the server."""

    address: str
    keys: WorkerKeys
    patience: float  # how many seconds to try before giving up
    silence: float = 30.0
    """Seconds without a heartbeat after which the server counts this worker as lost."""


class WorkerProcess:
    """One worker's process."""

    def __init__(
        self,
        connection: ServerConnection,
        prepare: Prepare,
        describe: Describe,
        memory: Path,
        say: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._prepare = prepare
        self._describe = describe
        self._memory = memory
        self._say = say
        self._participation: Participation | None = None

    def run(self) -> None:
        """Work until the server says that the job is over."""
        last_seen = time.monotonic()
        last_error = ""
        while True:
            raise_if_interrupted()
            node = Node(self._connection.address, self._connection.keys, self._connection.silence)
            try:
                with node.connected():
                    self._say(f"connected to {self._connection.address}")
                    last_error = ""
                    try:
                        self._serve(node)
                        return
                    finally:
                        last_seen = time.monotonic()
            except DisconnectedError as error:
                patience, hint = self._patience_with(error)
                if time.monotonic() - last_seen > patience:
                    raise AdaptCLError(
                        f"The server at {self._connection.address} could not be reached for "
                        f"{short_duration(patience)}: {error}"
                    ) from None
                if str(error) != last_error:
                    last_error = str(error)
                    self._say(f"waiting for {self._connection.address}: {error}{hint}")
                time.sleep(_RETRY_S)

    def _patience_with(self, error: DisconnectedError) -> tuple[float, str]:
        """How many seconds to try again after an error, and what else to say of it."""
        patience, silence = self._connection.patience, self._connection.silence
        if not isinstance(error, OccupiedError):
            return patience, ""
        # Long enough for the server to miss a worker that was killed with this key.
        return min(patience, 2 * silence), (
            " If that is this worker's own former connection, the server gives it up after "
            f"{short_duration(silence)} of silence."
        )

    def _serve(self, node: Node) -> None:
        """Answer messages until the last one."""
        while True:
            raise_if_interrupted()
            incoming = node.receive()
            if incoming is None:
                continue
            if incoming.kind == END:
                with suppress(DisconnectedError):
                    node.answer(incoming, Reply().frame().to_bytes())
                if self._participation is not None:
                    self._participation.memories.forget()
                self._say("the run is over")
                return
            if incoming.kind == DESCRIBE:
                with self._telling_failures(node, incoming):
                    question = Question.read(Frame.from_bytes(incoming.content))
                    told = self._describe(question).frame()
                node.answer(incoming, told.to_bytes())
            elif incoming.kind == WAIT:
                node.answer(incoming, Reply().frame().to_bytes())
                self._say(waiting_in_words(Frame.from_bytes(incoming.content)))
            elif incoming.kind == INVITE:
                self._take_part(node, incoming)
            elif incoming.kind == TASK and self._participation is not None:
                node.answer(incoming, self._answer_task(self._participation, incoming.content))

    def _answer_task(self, participation: Participation, task: bytes) -> bytes:
        """The frame of an update for the frame of a task, or of the kind of error."""
        try:
            return participation.make_update(task)
        except Exception as error:
            # A failed task must not end a worker that others still need. Only its owner may read
            # why: the text of an error may hold what it trains on.
            kind = type(error).__name__
            text = str(error) if isinstance(error, AdaptCLError) else traceback.format_exc().strip()
            self._say(f"a task failed, and the server is told no more than {kind!r}: {text}")
            return Reply(error=kind).frame().to_bytes()

    def _take_part(self, node: Node, incoming: Incoming) -> None:
        """Answer an invitation, by what this worker's model turns out to be."""
        with self._telling_failures(node, incoming):
            invitation = Invitation.read(Frame.from_bytes(incoming.content))
            if self._participation is None or self._participation.invitation != invitation:
                before = self._participation
                # A server that goes on elsewhere may compute the run's trial with other digits.
                if before is not None and before.invitation.run != invitation.run:
                    before.memories.forget()
                self._participation = Participation(
                    invitation, *self._prepare(invitation), self._memory, self._say
                )
        held = self._participation.frozen
        holds = None if held is None else pack_kept(held.kept)
        node.answer(incoming, Reply(holds=holds).frame().to_bytes())
        self._say(f"taking part as worker {invitation.worker}")

    @contextmanager
    def _telling_failures(self, node: Node, incoming: Incoming) -> Iterator[None]:
        """If a worker cannot take part, the server hears that something failed, and no more."""
        try:
            yield
        except Exception as error:
            node.answer(incoming, Reply(error=for_the_server(error)).frame().to_bytes())
            if isinstance(error, AdaptCLError):
                raise
            raise for_the_owner(error) from error


class Participation:
    """A worker's part in one run."""

    def __init__(
        self,
        invitation: Invitation,
        worker: Worker,
        codecs: Codecs,
        memory: Path,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.invitation = invitation
        self.worker = worker
        self.frozen = _known_before(invitation, worker)
        self.memories = Memories(memory, invitation.run, invitation.worker)
        self._codecs = codecs
        self._say = say
        self._has_trained = False
        self._warm_up()

    def make_update(self, content: bytes) -> bytes:
        """The frame of an update for the frame of a task."""
        frame = Frame.from_bytes(content)
        units = self.worker.units
        self.frozen = read_frozen(frame, units) or self.frozen
        task = read_task(frame, units, self._codecs.down, self.frozen)
        used = read_used(frame, task)
        if not self._has_trained and not task.only_tests:
            self._has_trained = True
            self._say(f"training begins with round {task.round}")
        before = self.memories.before(task.round, used)
        update, answer, memory = train_and_encode(self.worker, task, before, self._codecs.up)
        self.memories.after(task.round, memory, used)
        self._say(_in_words(task, update))
        return answer.to_bytes()

    def _warm_up(self) -> None:
        """Train one step and forget it: PyTorch takes seconds over its first, which would make the
        worker look slow."""
        model, units = self.worker.model, self.worker.units
        whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        step = Recipe(epochs=2 / len(self.worker.samples), batch_size=2)
        task = Task(self.invitation.worker, 1, whole, units.everything(), step)
        self.worker.carry_out(task, WorkerMemory())


def _in_words(task: Task, update: Update) -> str:
    what, samples, loss = f"round {task.round}", update.samples, update.loss
    if task.only_tests and update.test is not None:
        what, samples = "tested the delivered model", update.test.samples
        loss = math.nan if update.test.loss is None else update.test.loss
    return f"{what}: {samples} samples, loss {loss:.4g}, {duration(update.seconds)}"


def _known_before(invitation: Invitation, worker: Worker) -> HeldFrozenTensors | None:
    """The frozen tensors of this machine's model, if they are the server's: those of a pretrained
    model that both have loaded need not travel at all."""
    tensors = frozen_tensors(worker.model.state_dict(), worker.units)
    if not tensors or digest(tensors) != invitation.frozen:
        return None
    return HeldFrozenTensors(worker.units.everything(), tensors, worker.units)


def train_and_encode(
    worker: Worker, task: Task, memory: WorkerMemory, codec: Codec
) -> tuple[Update, Frame, WorkerMemory]:
    """The update for a task, the frame that brings it to the server, and what to remember."""
    began = time.perf_counter()
    on_device = replace(task, state=_moved(task.state, worker.samples.device))
    update, found = worker.carry_out(on_device, memory)
    update = replace(update, state=_moved(update.state, torch.device("cpu")))
    payload, codec_memory = encode_update(update, task, worker.units, codec, found.codec)
    update = replace(update, seconds=time.perf_counter() - began)
    return update, update_frame(update, payload), replace(found, codec=codec_memory)


def _moved(state: Mapping[str, Tensor], device: torch.device) -> State:
    return {name: tensor.to(device) for name, tensor in state.items()}
