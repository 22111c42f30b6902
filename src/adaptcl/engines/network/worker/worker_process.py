"""What a worker process does: connect, carry out tasks, connect again, until all is over.

The model, the data and everything learned about them stay in this process from one task to the
next; a task costs its training and its bytes. Nothing that comes from the server is run: names
of models and data are the owner's, the server's settings are checked like a user's.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from adaptcl.codecs.codec import Codec
from adaptcl.data import Samples
from adaptcl.engines.network.frames import Frame
from adaptcl.engines.network.invitation import fingerprint, for_the_owner, for_the_server
from adaptcl.engines.network.keys import WorkerKeys
from adaptcl.engines.network.messages import (
    END,
    INVITE,
    TASK,
    Answer,
    Invitation,
    read_task,
    read_used,
    update_frame,
)
from adaptcl.engines.network.worker.memory_store import Memories
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node, OccupiedError
from adaptcl.errors import AdaptCLError
from adaptcl.pruning import WorkerOrder
from adaptcl.training import Recipe, Task
from adaptcl.training.devices import trainer
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.wire import encode
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap

_AGAIN_S = 1.0
"""Between two tries to connect."""


@dataclass(frozen=True)
class Belongings:
    """What a worker brings into a run, made from the run's settings."""

    model: nn.Module
    units: UnitMap
    samples: Samples
    codec: Codec
    seed: int
    precision: str
    custom_orders: Mapping[str, WorkerOrder] = field(default_factory=dict)
    """Pruning orders that are not AdaptCL's and that the owner of the machine allows."""


Prepare = Callable[[Invitation], Belongings]
Say = Callable[[str], None]


@dataclass(frozen=True)
class ServerConnection:
    """How to reach the server."""

    address: str
    keys: WorkerKeys
    patience: float
    """How many seconds to try before giving up."""
    silence: float = 30.0
    """After how many seconds without a sign of life the server gives this worker up."""


class WorkerProcess:
    """One worker's process."""

    def __init__(
        self, connection: ServerConnection, prepare: Prepare, memory: Path, say: Say
    ) -> None:
        self._connection = connection
        self._prepare = prepare
        self._memory = memory
        self._say = say
        self._taking_part: _TakingPart | None = None

    def run(self) -> None:
        """Work until the server says that all is over."""
        last_seen = time.monotonic()
        told = ""
        while True:
            node = Node(self._connection.address, self._connection.keys, self._connection.silence)
            try:
                with node.connected():
                    self._say(f"connected to {self._connection.address}")
                    told = ""
                    try:
                        self._serve(node)
                        return
                    finally:
                        last_seen = time.monotonic()
            except DisconnectedError as error:
                patience = self._connection.patience
                if isinstance(error, OccupiedError):
                    # Long enough for a worker killed with this key to be given up.
                    patience = min(patience, 2 * self._connection.silence)
                if time.monotonic() - last_seen > patience:
                    raise AdaptCLError(
                        f"The server at {self._connection.address} could not be reached for "
                        f"{patience:g} s: {error}"
                    ) from None
                if str(error) != told:
                    told = str(error)
                    self._say(f"waiting for {self._connection.address}: {error}")
                time.sleep(_AGAIN_S)

    def _serve(self, node: Node) -> None:
        """Answer messages until the last one."""
        while True:
            incoming = node.receive()
            if incoming is None:
                continue
            if incoming.kind == END:
                with suppress(DisconnectedError):
                    node.answer(incoming, Answer().frame().to_bytes())
                if self._taking_part is not None:
                    self._taking_part.memories.forget()
                self._say("the run is over")
                return
            if incoming.kind == INVITE:
                self._take_part(node, incoming)
            elif incoming.kind == TASK and self._taking_part is not None:
                node.answer(incoming, self._carry_out(self._taking_part, incoming.content))

    def _carry_out(self, part: _TakingPart, task: bytes) -> bytes:
        """The frame of an update for the frame of a task, or of what kind of error there was."""
        try:
            return part.carry_out(task)
        except Exception as error:
            # A task that cannot be carried out must not end a worker that others still need. What
            # is wrong is for its owner to read: the text of an error may hold what it trains on.
            kind = type(error).__name__
            told = str(error) if isinstance(error, AdaptCLError) else traceback.format_exc().strip()
            self._say(f"a task failed, and the server is told no more than {kind!r}: {told}")
            return Answer(error=kind).frame().to_bytes()

    def _take_part(self, node: Node, incoming: Incoming) -> None:
        """Answer an invitation, by what this worker's own model turns out to be."""
        try:
            invitation = Invitation.read(Frame.from_bytes(incoming.content))
            if self._taking_part is None or self._taking_part.invitation != invitation:
                if self._taking_part is not None:
                    self._taking_part.memories.forget()
                self._taking_part = _TakingPart(invitation, self._prepare(invitation), self._memory)
        except Exception as error:
            # Of whatever fails on this machine the server hears no more than that it did.
            node.answer(incoming, Answer(error=for_the_server(error)).frame().to_bytes())
            if isinstance(error, AdaptCLError):
                raise
            raise for_the_owner(error) from error
        mine = self._taking_part.fingerprint
        node.answer(incoming, Answer(fingerprint=mine).frame().to_bytes())
        self._say(f"taking part as worker {invitation.worker}")


class _TakingPart:
    """A worker in one run."""

    def __init__(self, invitation: Invitation, belongings: Belongings, memory: Path) -> None:
        self.invitation = invitation
        self._own = belongings
        self.fingerprint = fingerprint(belongings.model, belongings.units)
        self.memories = Memories(memory, invitation.run, invitation.worker)
        samples = belongings.samples
        first = torch.arange(2, device=samples.labels.device) % len(samples)
        self._worker = Worker(
            invitation.worker,
            samples,
            belongings.model,
            belongings.units,
            belongings.seed,
            trainer=trainer(belongings.model, belongings.units, samples, belongings.precision),
            draws_randomness=draws_randomness(belongings.model, samples.batch(first)[0]),
            custom_orders=belongings.custom_orders,
        )
        self._warm_up()

    def carry_out(self, content: bytes) -> bytes:
        """The frame of an update for the frame of a task."""
        frame = Frame.from_bytes(content)
        task = read_task(frame, self._own.units)
        used = read_used(frame, task)
        began = time.perf_counter()
        there = dataclasses.replace(task, state=self._moved(task.state))
        update, memory = self._worker.carry_out(there, self.memories.before(task.round, used))
        update = dataclasses.replace(
            update, state={name: tensor.cpu() for name, tensor in update.state.items()}
        )
        payload, of_codec = encode(update, task, self._own.units, self._own.codec, memory.codec)
        seconds = time.perf_counter() - began
        self.memories.after(task.round, WorkerMemory(memory.lasso, of_codec), used)
        return update_frame(update, payload, seconds).to_bytes()

    def _warm_up(self) -> None:
        """Train for one step and forget it: PyTorch takes seconds over the very first one, which
        would look like a slow worker."""
        whole = {
            name: tensor.detach().clone() for name, tensor in self._own.model.state_dict().items()
        }
        step = Recipe(epochs=2 / len(self._own.samples), batch_size=2)
        task = Task(self.invitation.worker, 0, whole, self._own.units.everything(), step)
        self._worker.carry_out(task, WorkerMemory())

    def _moved(self, state: Mapping[str, Tensor]) -> State:
        device = self._own.samples.labels.device
        return {name: tensor.to(device) for name, tensor in state.items()}
