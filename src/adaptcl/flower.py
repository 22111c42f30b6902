"""AdaptCL in somebody's own Flower app: a strategy for its ServerApp, training for its ClientApp.

`AdaptCL` is an ordinary Flower strategy, and `train` answers its messages. Everything else of the
app (who starts what where, which data a node has) stays Flower's and the app's. Where there is no
app yet, `adaptcl server` and `adaptcl worker` need none.

Workers are Flower's nodes, numbered in the order of their IDs when the first round begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, cast

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from torch import Tensor, nn

from adaptcl.codecs import codec as codec_by_name
from adaptcl.codecs import codec_class
from adaptcl.codecs.codec import Memory
from adaptcl.data import as_samples
from adaptcl.engines.flower_grid import Moments, TimedGrid
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.engines.network.frames import Frame, from_record, printable, to_record
from adaptcl.engines.network.gate import read_answer
from adaptcl.engines.network.messages import read_task, read_used, task_frame, update_frame
from adaptcl.engines.network.server.conduct import Conduct
from adaptcl.errors import SettingError, UpdateError
from adaptcl.pruning import custom_worker_orders, server_order
from adaptcl.settings import build, declared, is_custom
from adaptcl.strategies import STRATEGIES, Closed, Job, Reaction, Strategy, strategy_class
from adaptcl.strategies.adaptcl.speed_history import TYPICAL_NOISE
from adaptcl.strategies.synchronous import Synchronous
from adaptcl.training import Arrival, Recipe, Task, Timing
from adaptcl.training.devices import trainer
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.wire import encode
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import trace

__all__ = ["AdaptCL", "train"]

_MEMORY, _BEFORE = "adaptcl-memory", "adaptcl-memory-before"
"""What a node remembers: after its latest task, and before it."""
_OF_THE_LOOP = ("deadline", "late_updates")
"""Settings of strategies with a barrier that only our own engines can carry out."""


class AdaptCL(FlowerStrategy):
    """AdaptCL, or another of our strategies with a barrier, as a Flower strategy."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        workers: int,
        strategy: str = "adaptcl",
        codec: str = "plain",
        seed: int = 1,
        fixed: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`example` is a small batch that the model takes; `settings` are those of training, of
        the strategy and of the codec, as `adaptcl.run` takes them."""
        chosen = _with_barrier(strategy)
        self._codec = codec_by_name(codec, settings)
        groups = (Recipe, chosen.Settings, codec_class(codec).Settings)
        _refuse_unknown(settings, groups, f"{strategy} and {codec}")
        for name in settings:
            if name in _OF_THE_LOOP:
                raise SettingError(
                    f"{name} would do nothing here, because Flower's loop decides when a round is "
                    "over; give `start` a `timeout`, after which a round goes on without the rest."
                )
        if workers < 1:
            raise SettingError(f"workers is {workers}, but it must be at least 1.")
        self._strategy_class = chosen
        self._settings = build(chosen.Settings, settings)
        # Flower's loop counts the rounds, and gives the tensors when it begins.
        self._job = Job(
            trace(model, example, tuple(fixed)),
            state={},
            workers=workers,
            rounds=2**31,
            recipe=build(Recipe, settings),
            seed=seed,
            time_noise=TYPICAL_NOISE,
        )
        chosen(self._job, self._settings)  # refuses what does not fit so many workers
        self._strategy: Strategy | None = None
        self._nodes: list[int] = []
        self._tasks: dict[int, Task] = {}
        """What the next messages will carry, by worker."""
        self._sent: dict[int, tuple[Task, int]] = {}
        """What is under way: the task and its size."""
        self._used = [0] * workers
        """The round of each worker's latest update that was used."""
        self._conduct = Conduct(workers)
        self._away: set[int] = set()
        self._closed: Closed | None = None
        self._moments: dict[int, Moments] = {}
        """Of this round's messages, by node."""

    # What Flower calls -------------------------------------------------------------------------

    def start(self, grid: Grid, *arguments: Any, **options: Any) -> Result:
        """Run all rounds, as Flower's strategies do, with each node's own time."""
        return super().start(cast(Grid, TimedGrid(grid, self._moments)), *arguments, **options)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for each worker, with its own sub-model."""
        strategy = self._strategy or self._begin(arrays, grid)
        online = set(grid.get_node_ids())
        for worker in [w for w in self._away if self._nodes[w] in online]:
            self._away.discard(worker)
            self._take(strategy.joined(worker))
        messages = []
        self._moments.clear()
        for worker, task in sorted(self._tasks.items()):
            content = task_frame(task, self._used[worker]).to_bytes()
            self._sent[worker] = (task, len(content))
            messages.append(
                Message(
                    to_record(content),
                    self._nodes[worker],
                    MessageType.TRAIN,
                    group_id=str(server_round),
                )
            )
        self._tasks.clear()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge what came back, and learn from how long it took."""
        strategy = self._strategy
        if strategy is None:
            return None, None
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        self._closed = None
        times = [0.0] * self._job.workers
        for worker in sorted(self._sent):
            arrival = self._arrival(worker, by_node.get(self._nodes[worker]))
            if arrival is None:
                self._away.add(worker)
                self._take(strategy.lost(worker))
            else:
                times[worker] = arrival.timing.update_time
                self._used[worker] = arrival.update.round
                self._conduct.approve(arrival.update)
                self._take(strategy.receive(arrival))
        self._sent.clear()
        if self._closed is None:
            return None, None
        metrics = {
            "workers": len(self._closed.workers),
            "heterogeneity": heterogeneity(times),
            "slowest-update-time": max(times),
            "smallest-retention": min(each.retention for each in self._closed.workers),
        }
        return ArrayRecord(strategy.model()), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the global model is evaluated by the `evaluate_fn` given to `start`."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked, so there is nothing to say."""
        return None

    def summary(self) -> None:
        """Say what is about to run."""
        log(INFO, "\t└──> %s with %d workers", self._strategy_class.__name__, self._job.workers)

    # Behind it ---------------------------------------------------------------------------------

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> Strategy:
        while len(nodes := sorted(grid.get_node_ids())) < self._job.workers:
            time.sleep(1.0)
        self._nodes = nodes[: self._job.workers]
        job = replace(self._job, state=dict(arrays.to_torch_state_dict()))
        self._strategy = self._strategy_class(job, self._settings)
        self._take(self._strategy.start())
        return self._strategy

    def _take(self, reaction: Reaction) -> None:
        self._tasks.update({task.worker: task for task in reaction.tasks})
        if reaction.closed is not None:
            self._closed = reaction.closed
            for warning in reaction.closed.warnings:
                log(WARNING, warning)

    def _arrival(self, worker: int, reply: Message | None) -> Arrival | None:
        """A worker's update with its time, or None where there is no update to use."""
        task, size = self._sent[worker]
        try:
            if reply is None or reply.has_error():
                reason = "there is no answer" if reply is None else reply.error.reason
                raise UpdateError(printable(str(reason)))
            content = from_record(reply.content)
            reading = read_answer(content, task, self._job.units, self._codec)
            self._conduct.check(reading.update)
        except UpdateError as error:
            log(WARNING, "Worker %d is left out of this round: %s", worker, error)
            return None
        # In a loop of somebody's own, all that is known is how long the worker says it trained.
        moments = self._moments.get(self._nodes[worker])
        elapsed = moments.elapsed(reading.seconds) if moments else reading.seconds
        train_s = min(reading.seconds, elapsed)
        timing = Timing(
            (elapsed - train_s) / 2, train_s, (elapsed - train_s) / 2, size, len(content)
        )
        return Arrival(reading.update, timing)


def train(
    message: Message,
    context: Context,
    *,
    model: nn.Module,
    data: Any,
    codec: str = "plain",
    pruning: str = "",
    seed: int = 1,
    fixed: Sequence[str] = (),
    **settings: Any,
) -> Message:
    """Answer a message of `AdaptCL`, in a ClientApp's train function.

    `model`, `codec`, `seed`, `fixed` and the codec's settings must be those of the strategy;
    `data` is this node's data set, in any form that `adaptcl.run` takes. `pruning` allows a pruning
    order of your own that workers compute, `package.module:Class`, if the strategy has it: what a
    message names is not imported for that. AdaptCL's own need no permission. What has to be
    remembered until the next round is kept in the context's state.
    """
    _refuse_unknown(settings, (codec_class(codec).Settings,), f"{codec} in `train`")
    if pruning:
        server_order(pruning)  # refuses one that there is not
    chosen = codec_by_name(codec, settings)
    samples = as_samples(data)
    example, _ = samples.batch(torch.arange(2, device=samples.labels.device) % len(samples))
    units = trace(model, example, tuple(fixed))
    frame = Frame.from_bytes(from_record(message.content))
    task = read_task(frame, units)
    # On a GPU, where a step is captured first, that would not pay within one message.
    own = None
    if samples.labels.device.type == "cpu":
        own = trainer(model, units, samples, "float32")
    worker = Worker(
        task.worker,
        samples,
        model,
        units,
        seed,
        trainer=own,
        draws_randomness=draws_randomness(model, example),
        custom_orders=custom_worker_orders(pruning),
    )
    began = time.perf_counter()
    known = _remembered(context, read_used(frame, task))
    update, memory = worker.carry_out(task, known)
    payload, of_codec = encode(update, task, units, chosen, memory.codec)
    seconds = time.perf_counter() - began
    # Whether the server can use this update turns out with the next message.
    context.state[_BEFORE] = _as_record(replace(known, lasso=memory.lasso), task.round)
    context.state[_MEMORY] = _as_record(WorkerMemory(memory.lasso, of_codec), task.round)
    content = to_record(update_frame(update, payload, seconds).to_bytes())
    content["metrics"] = MetricRecord({"num-examples": len(samples), "train-loss": update.loss})
    return Message(content, reply_to=message)


def _refuse_unknown(settings: Iterable[str], groups: Iterable[type], of: str) -> None:
    known = {each.name for group in groups for each in declared(group)}
    for name in settings:
        if name not in known:
            raise SettingError(f"There is no setting {name!r} for {of}.")


def _with_barrier(name: str) -> type[Synchronous]:
    chosen: Any = strategy_class(name) if name in STRATEGIES or is_custom(name) else None
    if isinstance(chosen, type) and issubclass(chosen, Synchronous):
        return chosen
    raise SettingError(
        f"strategy is {name!r}, but in Flower's loop of rounds it must be one with a barrier; "
        "`adaptcl server` runs all of them."
    )


def _remembered(context: Context, used: int | None) -> WorkerMemory:
    """What this node knew after its update of the round `used`, the latest that counted."""
    latest = _frame(context, _MEMORY)
    if latest is None:
        return WorkerMemory()
    if used is not None and latest.header["round"] > used:
        latest = _frame(context, _BEFORE) or latest
    return WorkerMemory(latest.header["lasso"], Memory(latest.tensors))


def _frame(context: Context, name: str) -> Frame | None:
    record = context.state.get(name)
    if not isinstance(record, ArrayRecord):
        return None
    return Frame.from_bytes(from_record(RecordDict({"frame": record})))


def _as_record(memory: WorkerMemory, round_: int) -> ArrayRecord:
    header = {"lasso": memory.lasso, "round": round_}
    record = to_record(Frame(header, dict(memory.codec.tensors)).to_bytes())
    return cast(ArrayRecord, record["frame"])
