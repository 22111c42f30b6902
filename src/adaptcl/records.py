"""The records of a run: one for each round, and one summary.

They are the lines of `rounds.jsonl` and the content of `summary.json`. Other tools read the field
names, so no field is ever renamed; new ones may be added.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from adaptcl.training.objectives.evaluation import finite_or_none
from adaptcl.training.objectives.metrics import HIGHER, Measure
from adaptcl.training.task import WorkerTest

TESTS = 5
"""How many tests make one mean, by which runs are compared and end at a target: one test may be
lucky. The first means of a run have fewer, and end nothing."""
NO_RECORD = (AttributeError, KeyError, TypeError)
"""What reading a record raises if the values are none, such as a list or another program's."""


@dataclass(frozen=True)
class WorkerRecord:
    """One worker in one round. Times are seconds of the run's clock."""

    worker: int
    send_s: float
    train_s: float
    receive_s: float
    update_time_s: float
    """The paper's φ: from sending the task to the arrival of the update."""
    retention: float
    """The paper's γ after this round: the fraction of the trained parameters that is kept."""
    pruned_rate: float
    """The paper's P in this round; negative if the sub-model grew."""
    importance_lost: float | None = None
    """If the worker pruned: the share of its units' importance that it cut away."""
    loss_jump: float | None = None
    """If the worker pruned: the loss at the end of the round minus that just before the pruning."""
    bytes_sent: int = 0
    """Bytes from server to worker."""
    bytes_received: int = 0
    """Bytes from worker to server."""
    train_loss: float | None = None
    """Mean loss over the worker's mini-batches of this round, without the group lasso."""
    test: WorkerTest | None = None
    """Of the model that the worker was sent, where workers test; the file leaves it out if there is
    none."""
    begin_s: float | None = None
    """When the worker's task was sent, if that was not when the round began: always without a
    barrier, and with one for late updates and workers that joined. The file leaves it out
    otherwise."""


@dataclass(frozen=True)
class RoundRecord:
    """One finished round; an asynchronous round has as many merges as there are workers."""

    round: int
    virtual_time_s: float
    accuracy: float | None
    """Top-1 accuracy on the test data as a fraction; None if the round was not tested, or if the
    run measures something else."""
    heterogeneity: float | None
    """The paper's H over the workers of this round; None while a worker has no update time yet, as
    in the first rounds without a barrier."""
    workers: tuple[WorkerRecord, ...]
    similarity: float | None = None
    """Mean similarity over all pairs of sub-models, in rounds with a pruning."""
    missing: tuple[int, ...] = ()
    """Workers that this round closed without: late or lost with its task, still busy with an
    earlier one, or away; where workers are drawn for each round, only those that were asked."""
    participants: tuple[int, ...] = ()
    """Workers drawn to take part in this round; empty if all take part."""
    bytes_sent: int = 0
    """Bytes from server to workers for all tasks that ended since the previous round, also for
    tasks without an update."""
    bytes_received: int = 0
    """Bytes of all updates that arrived since the previous round, used or not."""
    test_loss: float | None = None
    """Mean loss on the test data, if the round was tested. Where workers test, this and the metrics
    are of the models that they were sent in this round."""
    metric: str | None = None
    """The name of the main metric, if the round was tested."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """All metrics of the test by name; None for one that is not finite."""
    variants: Mapping[str, float | None] = field(default_factory=dict)
    """The main metric of the model in other forms (`runs/variants.py`), in tests that measured
    them. The file leaves it out otherwise."""

    @property
    def main_value(self) -> float | None:
        """The value of the main metric, if the round was tested."""
        return self.accuracy if self.metric is None else self.metrics.get(self.metric)

    @property
    def train_loss(self) -> float | None:
        """The mean of the workers' losses."""
        known = [each.train_loss for each in self.workers if each.train_loss is not None]
        return fmean(known) if known else None

    @property
    def worker_values(self) -> dict[int, float]:
        """The main metric of each worker's test, where workers test."""
        tests = {each.worker: each.test for each in self.workers if each.test is not None}
        values = {worker: test.metrics.get(self.metric or "") for worker, test in tests.items()}
        return {worker: value for worker, value in values.items() if value is not None}

    def tested(
        self,
        loss: float,
        metric: str,
        metrics: Mapping[str, float],
        variants: Mapping[str, float] = MappingProxyType({}),
    ) -> RoundRecord:
        """The record with the results of a test."""
        known = {name: finite_or_none(value) for name, value in metrics.items()}
        return replace(
            self,
            accuracy=known.get("accuracy"),
            test_loss=finite_or_none(loss),
            metric=metric,
            metrics=known,
            variants={name: finite_or_none(value) for name, value in variants.items()},
        )

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        for worker in values["workers"]:
            if worker["loss_jump"] is not None:
                worker["loss_jump"] = finite_or_none(worker["loss_jump"])
            for name in ("test", "begin_s"):
                if worker[name] is None:
                    del worker[name]
        if not self.variants:
            del values["variants"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundRecord:
        """Read what `to_json` wrote; anything else is one of the errors `NO_RECORD`."""
        workers = tuple(map(_read_worker, values["workers"]))
        lists = {name: tuple(values.get(name, ())) for name in ("missing", "participants")}
        return cls(**{**values, **lists, "workers": workers})


def _read_worker(values: Mapping[str, Any]) -> WorkerRecord:
    test = values.get("test")
    return WorkerRecord(**{**values, "test": None if test is None else WorkerTest(**test)})


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def first_and_last_heterogeneity(found: Iterable[float | None]) -> tuple[float, float]:
    """The first and last known H; 0, as for a single worker, if none is known."""
    known = [each for each in found if each is not None] or [0.0]
    return known[0], known[-1]


def end_s(records: Sequence[RoundRecord]) -> float:
    """When these rounds end on the run's clock; 0 if there are none."""
    return records[-1].virtual_time_s if records else 0.0


def bytes_moved(records: Sequence[RoundRecord]) -> tuple[int, int]:
    """Bytes sent and received in these rounds, all workers together."""
    return sum(r.bytes_sent for r in records), sum(r.bytes_received for r in records)


_ACCURACIES = ("accuracy", "best_accuracy")
_BY_WORKER_OR_CLASS = (
    *("retention", "updates", "accuracy_by_class", "accuracy_by_worker", "worker_metrics"),
    "samples_by_worker",
)
"""Fields of a summary that JSON gives back as lists."""


@dataclass(frozen=True)
class Summary:
    """The numbers of a finished run."""

    strategy: str
    accuracy: float
    """Of the last test; NaN, in the file null, if the run measures something else."""
    best_accuracy: float
    best_round: int
    """The round of the best test by the main metric."""
    best_virtual_time_s: float
    """When the best test was first made, on the run's clock."""
    rounds: int
    virtual_time_s: float
    wall_time_s: float
    heterogeneity_first: float
    """H of the first round in which all workers had an update time."""
    heterogeneity_last: float
    retention: tuple[float, ...]
    """By worker, at the end."""
    params_saved: float
    """1 − the mean parameters of the final sub-models, as a fraction of the whole model."""
    flops_saved: float
    seed: int
    workers: int
    model: str
    data: str
    bytes_sent: int
    bytes_received: int
    """Over the whole run and all workers: for every task that ended and every update that arrived,
    used or not."""
    updates: tuple[int, ...] = ()
    """By worker, how many of its updates were used."""
    accuracy_by_class: tuple[float | None, ...] = ()
    """Of the final model on the test samples of each class; None for a class without samples."""
    accuracy_by_worker: tuple[float | None, ...] = ()
    """Of the same model on test data with each worker's shares of the classes, or where workers
    test, on what each holds back; empty if that is unknown, as across machines."""
    samples_by_worker: tuple[int, ...] = ()
    """How many training samples each worker has, in a simulation."""
    labels_by_worker: tuple[tuple[int, ...], ...] = ()
    """How many of them are of each class, if they have one label each. The file leaves both out
    where they are unknown, as across machines."""
    stopped_by: str | None = None
    """Why the run ended before all its rounds were done: the setting that ended it, or `listener`
    with what the listener said; None if all rounds were done."""
    metric: str = "accuracy"
    """The name of the main metric, by which tests are compared."""
    better: str = HIGHER
    """Which values of it are better, `higher` or `lower` ones."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """All metrics of the last test by name; None for one that is not finite."""
    best_metric: float | None = None
    """The main metric of the best test."""
    test_loss: float | None = None
    """The loss of the last test."""
    worker_metrics: tuple[Mapping[str, float | None], ...] = ()
    """All metrics of the last test by worker, empty for one that did not test; where workers test.
    The file leaves it out otherwise."""

    @property
    def measure(self) -> Measure:
        """The main metric."""
        return Measure(self.metric, self.better)

    @property
    def main_value(self) -> float:
        """The value of the main metric in the last test; NaN if it was not finite."""
        return _number(self.metrics.get(self.metric, self.accuracy))

    @property
    def best_value(self) -> float:
        """The value of the main metric in the best test."""
        return self.best_accuracy if self.best_metric is None else self.best_metric

    @property
    def best_is_delivered(self) -> bool:
        """Whether the delivered model had the best test. Where workers test, the last round has two
        tests: of the model that it sent, and of the delivered one."""
        is_last = self.best_round == self.rounds
        return is_last and (self.best_metric is None or self.best_metric == self.main_value)

    @property
    def worker_values(self) -> tuple[float, ...]:
        """The main metric in each worker's last test, of those that have one."""
        values = (each.get(self.metric) for each in self.worker_metrics)
        return tuple(value for value in values if value is not None)

    @property
    def bytes_moved(self) -> int:
        return self.bytes_sent + self.bytes_received

    @property
    def worst_class_accuracy(self) -> float | None:
        return min((each for each in self.accuracy_by_class if each is not None), default=None)

    @property
    def least_worker_accuracy(self) -> float | None:
        return min((each for each in self.accuracy_by_worker if each is not None), default=None)

    @property
    def mean_worker_accuracy(self) -> float | None:
        """The mean over workers, whatever number of samples each has."""
        known = [each for each in self.accuracy_by_worker if each is not None]
        return fmean(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name."""
        return dataclasses.asdict(self)

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        for name in ("samples_by_worker", "labels_by_worker", "worker_metrics"):
            if not values[name]:
                del values[name]
        return values | {name: finite_or_none(values[name]) for name in _ACCURACIES}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Read what `to_json` wrote; anything else is one of the errors `NO_RECORD`."""
        lists = {name: tuple(values.get(name, ())) for name in _BY_WORKER_OR_CLASS}
        numbers = {name: _number(values[name]) for name in _ACCURACIES}
        labels = tuple(map(tuple, values.get("labels_by_worker", ())))
        return cls(**{**values, **lists, **numbers, "labels_by_worker": labels})


def summarise(
    records: Sequence[RoundRecord],
    measure: Measure | None = None,
    delivered: RoundRecord | None = None,
    **known: Any,
) -> Summary:
    """Make a run's summary from its rounds and the numbers that rounds do not have.

    `delivered` is the last round with the test of the delivered model, if it did not have that.
    """
    measure = measure or Measure()
    tests = [*records, *([] if delivered is None else [delivered])]
    tested = [r for r in tests if r.metric is not None or r.accuracy is not None]
    last_test = tested[-1] if tested else records[-1]
    best = last_test
    for each in reversed(tested):  # of equal tests the first
        if each.main_value is not None and (
            best.main_value is None or not measure.is_better(best.main_value, each.main_value)
        ):
            best = each
    sent, received = bytes_moved(records)
    first, last = first_and_last_heterogeneity(r.heterogeneity for r in records)
    used = Counter(w.worker for r in records for w in r.workers)
    return Summary(
        accuracy=_number(last_test.accuracy),
        best_accuracy=_number(best.accuracy),
        best_round=best.round,
        best_virtual_time_s=best.virtual_time_s,
        rounds=records[-1].round,
        virtual_time_s=records[-1].virtual_time_s,
        heterogeneity_first=first,
        heterogeneity_last=last,
        bytes_sent=sent,
        bytes_received=received,
        updates=tuple(used[worker] for worker in range(known["workers"])),
        metric=measure.name,
        better=measure.better,
        metrics=last_test.metrics,
        best_metric=best.main_value,
        test_loss=last_test.test_loss,
        **known,
    )
