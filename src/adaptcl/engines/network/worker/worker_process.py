"""A worker's process: connect, carry out tasks, connect again, until the job is over.

Model and data stay in this process from one task to the next, so a task costs its training and its
bytes. Nothing that comes from the server is run: the owner names models and data, and the server's
settings are checked like a user's.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from adaptcl.codecs.codec import Codecs
from adaptcl.data import Samples
from adaptcl.engines.network.agreement import LocalStatistics
from adaptcl.engines.network.frames import Frame, pack_kept
from adaptcl.engines.network.invitation import (
    Invitation,
    Reply,
    fingerprint,
    for_the_owner,
    for_the_server,
)
from adaptcl.engines.network.keys import WorkerKeys
from adaptcl.engines.network.messages import (
    DESCRIBE,
    END,
    INVITE,
    TASK,
    read_frozen,
    read_task,
    read_used,
    update_frame,
)
from adaptcl.engines.network.worker.memory_store import Memories
from adaptcl.engines.network.worker.node import DisconnectedError, Incoming, Node, OccupiedError
from adaptcl.errors import AdaptCLError
from adaptcl.interrupts import raise_if_interrupted
from adaptcl.pruning import WorkerOrder
from adaptcl.training import Recipe, Task
from adaptcl.training.devices import trainer
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.training.optimizers import OptimizerFactory, Schedule
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.wire.encoding import encode_update
from adaptcl.training.wire.frozen import HeldFrozenTensors, digest, frozen_tensors
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import State, UnitMap

_RETRY_S = 1.0  # seconds between two tries to connect


@dataclass(frozen=True)
class LocalWorkload:
    """What a worker brings into a run, made from the run's settings."""

    model: nn.Module
    units: UnitMap
    samples: Samples
    codecs: Codecs
    seed: int
    precision: str
    custom_orders: Mapping[str, WorkerOrder] = field(default_factory=dict)
    """Custom pruning orders that the owner of the machine allows."""
    held_back: Samples | None = None  # what the worker tests on, if the server asks for tests
    test_every: int = 1
    objective: Objective = CLASSIFICATION
    custom_optimizer: OptimizerFactory | None = None
    schedule: Schedule | None = None


Prepare = Callable[[Invitation], LocalWorkload]
Say = Callable[[str], None]


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
        describe: Callable[[], LocalStatistics],
        memory: Path,
        say: Say,
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
                patience = self._connection.patience
                hint = ""
                if isinstance(error, OccupiedError):
                    # Long enough for the server to miss a worker that was killed with this key.
                    patience = min(patience, 2 * self._connection.silence)
                    hint = (
                        " If that is this worker's own former connection, the server gives it up "
                        f"after {self._connection.silence:g} s of silence."
                    )
                if time.monotonic() - last_seen > patience:
                    raise AdaptCLError(
                        f"The server at {self._connection.address} could not be reached for "
                        f"{patience:g} s: {error}"
                    ) from None
                if str(error) != last_error:
                    last_error = str(error)
                    self._say(f"waiting for {self._connection.address}: {error}{hint}")
                time.sleep(_RETRY_S)

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
                    told = self._describe().frame()
                node.answer(incoming, told.to_bytes())
            elif incoming.kind == INVITE:
                self._take_part(node, incoming)
            elif incoming.kind == TASK and self._participation is not None:
                node.answer(incoming, self._carry_out(self._participation, incoming.content))

    def _carry_out(self, participation: Participation, task: bytes) -> bytes:
        """The frame of an update for the frame of a task, or of the kind of error."""
        try:
            return participation.carry_out(task)
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
                if self._participation is not None:
                    self._participation.memories.forget()
                self._participation = Participation(
                    invitation, self._prepare(invitation), self._memory
                )
        mine = self._participation.fingerprint
        held = self._participation.frozen
        holds = None if held is None else pack_kept(held.kept)
        node.answer(incoming, Reply(fingerprint=mine, holds=holds).frame().to_bytes())
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


def _known_before(invitation: Invitation, workload: LocalWorkload) -> HeldFrozenTensors | None:
    """The frozen tensors of this machine's model, if they are the server's: those of a pretrained
    model that both have loaded need not travel at all."""
    tensors = frozen_tensors(workload.model.state_dict(), workload.units)
    if not tensors or digest(tensors) != invitation.frozen:
        return None
    return HeldFrozenTensors(workload.units.everything(), tensors, workload.units)


class Participation:
    """A worker's part in one run."""

    def __init__(self, invitation: Invitation, workload: LocalWorkload, memory: Path) -> None:
        self.invitation = invitation
        self._local = workload
        self.fingerprint = fingerprint(workload.model, workload.units)
        self.frozen = _known_before(invitation, workload)
        self.memories = Memories(memory, invitation.run, invitation.worker)
        samples = workload.samples
        first = torch.arange(2, device=samples.device) % len(samples)
        self._worker = Worker(
            invitation.worker,
            samples,
            workload.model,
            workload.units,
            workload.seed,
            trainer=trainer(
                workload.model,
                workload.units,
                samples,
                workload.precision,
                workload.objective,
                workload.custom_optimizer,
            ),
            draws_randomness=draws_randomness(workload.model, samples.batch(first)[0]),
            custom_orders=workload.custom_orders,
            objective=workload.objective,
            schedule=workload.schedule,
            held_back=workload.held_back,
            test_every=workload.test_every,
        )
        self._warm_up()

    def carry_out(self, content: bytes) -> bytes:
        """The frame of an update for the frame of a task."""
        frame = Frame.from_bytes(content)
        self.frozen = read_frozen(frame, self._local.units) or self.frozen
        task = read_task(frame, self._local.units, self._local.codecs.down, self.frozen)
        used = read_used(frame, task)
        began = time.perf_counter()
        on_device = dataclasses.replace(task, state=self._moved(task.state))
        update, memory = self._worker.carry_out(on_device, self.memories.before(task.round, used))
        update = dataclasses.replace(
            update, state={name: tensor.cpu() for name, tensor in update.state.items()}
        )
        payload, codec_memory = encode_update(
            update, task, self._local.units, self._local.codecs.up, memory.codec
        )
        seconds = time.perf_counter() - began
        self.memories.after(task.round, WorkerMemory(memory.lasso_lambda, codec_memory), used)
        return update_frame(update, payload, seconds).to_bytes()

    def _warm_up(self) -> None:
        """Train one step and forget it: PyTorch takes seconds over its first, which would make the
        worker look slow."""
        whole = {
            name: tensor.detach().clone() for name, tensor in self._local.model.state_dict().items()
        }
        step = Recipe(epochs=2 / len(self._local.samples), batch_size=2)
        task = Task(self.invitation.worker, 0, whole, self._local.units.everything(), step)
        self._worker.carry_out(task, WorkerMemory())

    def _moved(self, state: Mapping[str, Tensor]) -> State:
        device = self._local.samples.device
        return {name: tensor.to(device) for name, tensor in state.items()}
