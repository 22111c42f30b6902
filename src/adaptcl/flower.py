"""AdaptCL in somebody's Flower app: a strategy for its ServerApp, training for its ClientApp.

`AdaptCL` is an ordinary Flower strategy, and `train` answers its messages. The rest stays Flower's
and the app's: who starts what where, and which data a node has. Without an app, `adaptcl server`
and `adaptcl worker` do the same.

Workers are Flower's nodes, numbered in the order of their IDs when the run begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from flwr.supercore import log
from torch import Tensor, nn

from adaptcl.codecs import SAME, codec_class, codecs
from adaptcl.codecs.codec import Memory
from adaptcl.data import as_samples
from adaptcl.data.convert import class_names
from adaptcl.engines.flower_grid import UNITS, FlowerTransport
from adaptcl.engines.loop import Loop
from adaptcl.engines.network.frames import RECORD, Frame, from_record, to_record
from adaptcl.engines.network.invitation import Reply
from adaptcl.engines.network.messages import only_frozen, read_frozen, read_task, read_used
from adaptcl.engines.network.worker.worker_process import train_and_encode
from adaptcl.errors import DataError, SettingError
from adaptcl.events import Event, RoundFinished, Warned, WorkerLost
from adaptcl.pruning import custom_worker_orders, server_order
from adaptcl.records import RoundRecord
from adaptcl.settings import build, declared
from adaptcl.strategies import Closed, Job, Strategy, strategy_class
from adaptcl.training import Recipe
from adaptcl.training.devices import make_workers
from adaptcl.training.update_time import TYPICAL_NOISE
from adaptcl.training.wire import HeldFrozenTensors, LackingError
from adaptcl.training.worker import WorkerMemory
from adaptcl.units import UnitMap, trace
from adaptcl.units.as_json import units_from_json

__all__ = ["AdaptCL", "train"]

_MEMORY, _BEFORE = "adaptcl-memory", "adaptcl-memory-before"
"""What a node remembers: after its latest task, and from before it."""
_FROZEN = "adaptcl-frozen"  # the frozen tensors of the model, which the server sends once

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class AdaptCL(FlowerStrategy):
    """AdaptCL, or another strategy of this package, as a Flower strategy."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        workers: int,
        strategy: str = "adaptcl",
        codec: str = "plain",
        codec_down: str = SAME,
        seed: int = 1,
        fixed: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`example` is a small batch that the model takes; `settings` are those of training, of
        the strategy and of the codec, as `adaptcl.run` takes them."""
        self._strategy_name = strategy
        self._strategy_class = strategy_class(strategy)
        self._codecs = codecs(codec, codec_down, settings)
        groups = (Recipe, self._strategy_class.Settings, codec_class(codec).Settings)
        _refuse_unknown(settings, groups, f"{strategy} and {codec}")
        if workers < 1:
            raise SettingError(f"workers is {workers}, but it must be at least 1.")
        self._settings = build(self._strategy_class.Settings, settings)
        # `start` gives the tensors and the number of rounds.
        self._job = Job(
            trace(model, example, tuple(fixed)),
            state={},
            workers=workers,
            rounds=2**31,
            recipe=build(Recipe, settings),
            seed=seed,
            time_noise=TYPICAL_NOISE,
        )
        self._strategy_class(self._job, self._settings)  # refuses what does not fit these workers

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run all rounds, as `start` of Flower's strategies does.

        A node that has not answered after `timeout` seconds is left out of the round and asked
        again in the next. `evaluate_fn` tests the global model before the first round and after
        each. Nodes get the settings of training with their tasks, so the two configs are not sent.
        """
        log(INFO, "Starting %s strategy:", type(self).__name__)
        log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        log(INFO, "")
        began = time.monotonic()
        job = replace(
            self._job, state=dict(initial_arrays.to_torch_state_dict()), rounds=num_rounds
        )
        strategy = self._strategy_class(job, self._settings)
        transport = FlowerTransport(grid, job.workers, job.units, self._codecs, timeout)
        report = _Report(strategy.rounds, evaluate_fn)
        report.evaluate(0, initial_arrays)
        Loop(strategy, transport, job.workers, report, [report]).run()
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        log(INFO, "Final results:")
        for line in str(report.result).splitlines():
            log(INFO, "\t%s", line)
        return report.result

    def summary(self) -> None:
        log(INFO, "\t└──> %s with %d workers", self._strategy_name, self._job.workers)

    def _never_called(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("AdaptCL runs its own loop over Flower's grid; call `start`.")

    # Flower's own loop would call these four. `start` runs AdaptCL's loop, which never does.
    configure_train = aggregate_train = _never_called
    configure_evaluate = aggregate_evaluate = _never_called


class _Report:
    """Collects Flower's result round by round, and writes to Flower's log."""

    def __init__(self, rounds: int, evaluate_fn: EvaluateFunction | None) -> None:
        self.result = Result()
        self._rounds = rounds
        self._evaluate_fn = evaluate_fn

    def judge(self, strategy: Strategy, closed: Closed, is_last: bool) -> None:
        log(INFO, "[ROUND %s/%s]", closed.round, self._rounds)
        self.result.arrays = ArrayRecord(strategy.model())
        self.evaluate(closed.round, self.result.arrays)

    def evaluate(self, round_: int, arrays: ArrayRecord) -> None:
        if self._evaluate_fn is None:
            return
        found = self._evaluate_fn(round_, arrays)
        log(INFO, "\t└──> Global evaluation: %s", found)
        if found is not None:
            self.result.evaluate_metrics_serverapp[round_] = found

    def __call__(self, event: Event) -> None:
        match event:
            case Warned(sentence):
                log(WARNING, sentence)
            case WorkerLost(worker, reason=reason):
                log(WARNING, "Worker %d is left out of this round: %s", worker, reason)
            case RoundFinished(record):
                metrics = _metrics(record)
                log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                self.result.train_metrics_clientapp[record.round] = metrics


def _metrics(record: RoundRecord) -> MetricRecord:
    metrics: dict[str, int | float] = {
        "workers": len(record.workers),
        "slowest-update-time": max(each.update_time_s for each in record.workers),
        "smallest-retention": min(each.retention for each in record.workers),
    }
    if record.heterogeneity is not None:
        metrics["heterogeneity"] = record.heterogeneity
    return MetricRecord(metrics)  # type: ignore[arg-type]


def train(
    message: Message,
    context: Context,
    *,
    model: nn.Module,
    data: Any,
    codec: str = "plain",
    codec_down: str = SAME,
    pruning: str = "",
    seed: int = 1,
    **settings: Any,
) -> Message:
    """Answer a message of `AdaptCL`, in a ClientApp's train function.

    `model`, `codec`, `codec_down`, `seed` and the codec's settings must be those of the strategy.
    `data` is this node's data set, in any form that `adaptcl.run` takes. `pruning` allows a custom
    pruning order that workers compute, `package.module:Class`, if the strategy uses it: a node
    imports no code only because a message names it. Orders that come with AdaptCL need no
    permission. The context's state keeps what the node has to remember until the next round.
    """
    _refuse_unknown(settings, (codec_class(codec).Settings,), f"{codec} in `train`")
    if pruning:
        server_order(pruning)  # refuses a name that leads nowhere
    chosen = codecs(codec, codec_down, settings)
    samples = as_samples(data)
    if samples.classes and samples.classes != class_names(data):
        raise DataError(
            "Labels are names, which every node would number by itself; give class numbers."
        )
    example, _ = samples.batch(torch.arange(2, device=samples.device) % len(samples))
    frame = Frame.from_bytes(from_record(message.content))
    units = units_from_json(frame.header.get(UNITS), model)
    try:
        task = read_task(frame, units, chosen.down, _frozen(frame, context, units))
    except LackingError:  # then the server sends them again
        lacking = Reply(error=LackingError.__name__).frame().to_bytes()
        return Message(to_record(lacking), reply_to=message)
    (worker,) = make_workers(
        model,
        units,
        [samples],
        example,
        seed,
        first=task.worker,
        captures=False,  # it would not pay within one message
        custom_orders=custom_worker_orders(pruning),
    )
    before = _remembered(context, read_used(frame, task))
    update, answer, memory = train_and_encode(worker, task, before, chosen.up)
    # Only the next message says whether the server could use this update.
    context.state[_BEFORE] = _as_record(
        replace(before, lasso_lambda=memory.lasso_lambda), task.round
    )
    context.state[_MEMORY] = _as_record(memory, task.round)
    content = to_record(answer.to_bytes())
    content["metrics"] = MetricRecord({"num-examples": len(samples), "train-loss": update.loss})
    return Message(content, reply_to=message)


def _refuse_unknown(settings: Iterable[str], groups: Iterable[type], of: str) -> None:
    known = {each.name for group in groups for each in declared(group)}
    for name in settings:
        if name not in known:
            raise SettingError(f"There is no setting {name!r} for {of}.")


def _remembered(context: Context, used: int) -> WorkerMemory:
    """What this node knew after its update of the round `used`, the latest that counted."""
    latest = _frame(context, _MEMORY)
    if latest is None:
        return WorkerMemory()
    if latest.header["round"] > used:
        latest = _frame(context, _BEFORE) or latest
    return WorkerMemory(latest.header["lasso"], Memory(latest.tensors))


def _frozen(frame: Frame, context: Context, units: UnitMap) -> HeldFrozenTensors | None:
    """The frozen tensors that a message brings, or that an earlier one has brought."""
    brought = read_frozen(frame, units)
    if brought is not None:
        context.state[_FROZEN] = _record(only_frozen(frame))
        return brought
    earlier = _frame(context, _FROZEN)
    return None if earlier is None else read_frozen(earlier, units)


def _frame(context: Context, name: str) -> Frame | None:
    record = context.state.get(name)
    if not isinstance(record, ArrayRecord):
        return None
    return Frame.from_bytes(from_record(RecordDict({RECORD: record})))


def _as_record(memory: WorkerMemory, round_: int) -> ArrayRecord:
    header = {"lasso": memory.lasso_lambda, "round": round_}
    return _record(Frame(header, dict(memory.codec.tensors)))


def _record(frame: Frame) -> ArrayRecord:
    return cast(ArrayRecord, to_record(frame.to_bytes())[RECORD])
