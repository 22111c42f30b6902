"""What a run works on: the model, each worker's samples, and the test samples.

A model and data that do not fit together are refused here, before any training.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptcl import models
from adaptcl.config.config import FROM_PYTHON
from adaptcl.config.job import JobSettings
from adaptcl.data import OnProgress, Samples, as_samples, load, partition, silent
from adaptcl.data.columns import TargetKind
from adaptcl.data.convert import Collate, begins_a_data_set, part_as_samples
from adaptcl.data.description import (
    BY_WORKERS,
    DESCRIBED,
    LABEL,
    SampleForm,
    made_up,
    read_description,
)
from adaptcl.data.samples import SEVERAL, checksums, with_common_classes
from adaptcl.errors import DataError, SettingError
from adaptcl.seeds import generator
from adaptcl.training.devices import find_device
from adaptcl.training.objectives.objective import (
    CLASSIFICATION,
    Objective,
    find_objective,
    with_main,
)
from adaptcl.training.optimizers import OptimizerFactory, Schedule
from adaptcl.units import State, UnitMap, trace
from adaptcl.units.tensors import each_tensor
from adaptcl.units.tracing.trace import MOST_SAMPLES
from adaptcl.units.user_model import refuse_no_module


@dataclass(frozen=True)
class Workload:
    """A model and its data, on one device."""

    model: nn.Module
    worker_samples: Sequence[Samples]
    test: Samples
    """Where workers test the model, no test is made on these: they show what a sample is."""
    fixed: tuple[str, ...]  # patterns of module names whose units are never cut
    classes: tuple[str, ...] = ()  # names of the classes, if they have any
    outputs: int = 0
    """How many numbers the model was built to give, where there are no classes; 0 if unknown."""
    origin: tuple[tuple[int, int], ...] = ()
    """Checksums of training data from Python before it is dealt, so that no seed changes them."""
    objective: Objective = CLASSIFICATION
    custom_optimizer: OptimizerFactory | None = None
    schedule: Schedule | None = None
    tested_by_workers: bool = False
    held_back: Sequence[Samples] = ()
    """What each simulated worker tests the model on, where workers test."""

    def example(self) -> Any:
        """Inputs of two samples: batch norm cannot train on one."""
        return self.pair()[0]

    def pair(self) -> tuple[Any, Any]:
        """Inputs and targets of two samples."""
        return self.test.batch(torch.arange(2, device=self.device) % len(self.test))

    def samples_to_trace(self) -> Any:
        """The example, and samples from all over the test data if tracing needs more."""
        count = min(len(self.test), MOST_SAMPLES)
        spread = torch.arange(2, count) * (len(self.test) - 1) // max(1, count - 1)
        indexes = torch.cat([torch.arange(2) % len(self.test), spread])
        return self.test.batch(indexes.to(self.device))[0]

    @cached_property
    def units(self) -> UnitMap:
        return trace(self.model, self.samples_to_trace(), self.fixed)

    @property
    def described_inputs(self) -> SampleForm:
        """What the model was made for."""
        return SampleForm.of(self.test, self.classes, self.outputs)

    def model_with(self, state: State) -> nn.Module:
        """A copy of the model with these tensors, in evaluation mode."""
        copied = copy.deepcopy(self.model)
        copied.load_state_dict(state)
        return copied.eval()

    @property
    def device(self) -> torch.device:
        return self.test.device


def load_workload(
    job: JobSettings, progress: OnProgress = silent, *, needs_test: bool = True
) -> Workload:
    """Load the model and the data that the settings name.

    Without a need for a test part, samples for training may stand in its place.
    """
    find_device("device", job.device)
    for flag, name in (("--model", job.model), ("--data", job.data)):
        if name == FROM_PYTHON:
            raise SettingError(
                f"These settings are of a run from Python, which was given its "
                f"{flag.removeprefix('--')} as an object; name it with {flag}."
            )
    models.find(job.model)
    objective = named_objective(job)
    kind = objective.targets
    folder = Path(job.data_dir) if job.data_dir else None
    data = load(job.data, folder, progress, kind, needs_test=needs_test and not job.holdout)
    model, fixed = _built(job, data.train.shape, data.outputs)
    dealt, tests = _divided(deal(as_samples(data.train, kind), job), job)
    test = tests[0] if tests else as_samples(data.test, kind)
    made = _on_device(model, dealt, test, fixed, job, held_back=tests)
    classes = data.classes if kind == "labels" else ()
    return replace(made, classes=classes, outputs=data.outputs, objective=objective)


def named_objective(job: JobSettings) -> Objective:
    """The objective that the settings name."""
    return with_main(find_objective(job.objective), job.main_metric, job.better)


def _built(
    job: JobSettings, shape: tuple[int, ...], outputs: int
) -> tuple[nn.Module, tuple[str, ...]]:
    """The model that the settings name, and the patterns of modules that are never cut."""
    fixed = models.MODELS[job.model].fixed if job.model in models.MODELS else ()
    return models.build(job.model, shape, outputs, job.seed), (*fixed, *job.fixed)


def refuse_without_tests(job: JobSettings) -> None:
    """An error if nobody has samples to test on."""
    if (job.data == BY_WORKERS or job.data.startswith(DESCRIBED)) and not job.holdout:
        raise SettingError(
            f"data is {job.data!r}, so the server has no samples to test on; set holdout, the "
            "share of its samples that each worker holds back."
        )


def server_workload(job: JobSettings, known: SampleForm | None = None) -> Workload:
    """The model and data of a server. It needs no samples if their description is known: then
    workers test the model on what they hold back."""
    refuse_without_tests(job)
    if job.data.startswith(DESCRIBED):
        known = read_description(Path(job.data.removeprefix(DESCRIBED)))
    if known is None:
        return load_workload(job)
    objective = named_objective(job)
    if objective.targets not in ("labels", "any") and known.targets == LABEL:
        raise DataError(
            f"{job.data}: objective is {job.objective!r}, so it must say what `targets` are, such "
            'as {"shape": [], "kind": "float32"}.'
        )
    model, fixed = _built(job, known.shape, known.width)
    made = _on_device(model, [], made_up(known), fixed, job)
    made = replace(made, classes=known.classes, outputs=known.outputs)
    return replace(made, tested_by_workers=True, objective=objective)


def workload_from_python(
    model: nn.Module,
    train: Any,
    test: Any,
    job: JobSettings,
    objective: Objective = CLASSIFICATION,
    collate: Collate | None = None,
) -> Workload:
    """Take the user's model and data; `train` may be a list with a data set for each worker.

    `test` may be one as well, or None: then workers test the model, on what they hold back.
    """
    refuse_no_module(model)
    kind = objective.targets
    dealt = _datasets_by_worker(train, kind, collate, "train")
    whole = [part_as_samples("The training data", train, kind, collate)] if dealt is None else dealt
    if dealt is None:
        dealt = deal(whole[0], job)
    elif len(dealt) != job.workers:
        raise SettingError(f"workers is {job.workers}, but train is a list of {len(dealt)}.")
    elif job.samples:
        raise SettingError(
            f"samples is {job.samples}, but train is a list with a data set for each worker, of "
            f"which all is used."
        )
    tests = _datasets_by_worker(test, kind, collate, "test")
    if tests is None:
        dealt, tests = _divided(dealt, job)
    elif len(tests) != job.workers:
        raise SettingError(f"workers is {job.workers}, but test is a list of {len(tests)}.")
    first = "the training data" if len(whole) == 1 else "worker 0's data"
    tests = [
        each.aligned(whole[0], f"Worker {worker}'s test data", first)
        for worker, each in enumerate(tests)
    ]
    tested = tests[0] if tests else part_as_samples("The test data", test, kind, collate)
    tested = tested.aligned(whole[0], "The test data", first)
    origin = tuple(map(checksums, whole))
    tested, *parts = with_common_classes([tested, *dealt, *tests])
    dealt, tests = parts[: len(dealt)], parts[len(dealt) :]
    made = _on_device(
        model, dealt, tested, job.fixed, job, padded=collate is not None, held_back=tests
    )
    return replace(made, classes=tested.classes, origin=origin, objective=objective)


def is_list_by_worker(given: Any, name: str) -> bool:
    """Whether what is given as `name` is a list with a data set for each worker."""
    if isinstance(given, list) and not given:
        raise DataError(f"{name} is an empty list; it must hold a data set for each worker.")
    return isinstance(given, list) and not begins_a_data_set(given[0])


def _datasets_by_worker(
    given: Any, kind: TargetKind, collate: Collate | None, name: str
) -> list[Samples] | None:
    """The workers' data sets if a list of them is given as `name`, else None."""
    if not is_list_by_worker(given, name):
        return None
    whose = "data" if name == "train" else "test data"
    made = [
        part_as_samples(f"Worker {worker}'s {whose}", each, kind, collate)
        for worker, each in enumerate(given)
    ]
    return [
        each.aligned(made[0], f"Worker {worker}'s {whose}", f"worker 0's {whose}")
        for worker, each in enumerate(made)
    ]


def deal(samples: Samples, job: JobSettings) -> list[Samples]:
    """Divide the data among the workers, by the settings `samples` and `partition`."""
    if job.samples:
        samples = _drawn(samples, job)
    randomness = generator(job.seed, "partition")
    if job.partition != "iid" and not samples.has_labels:
        raise SettingError(
            f"partition is {job.partition!r}, but it deals samples by their class, and these have "
            "none; choose iid, or give train as a list with a data set for each worker."
        )
    labels = each_tensor(samples.targets)[0].cpu()
    indexes = {
        "iid": lambda: partition.iid(labels, job.workers, randomness),
        "by-label": lambda: partition.by_label_share(
            labels, job.workers, job.label_share / 100, randomness
        ),
        "dirichlet": lambda: partition.dirichlet(
            labels, job.workers, job.concentration, randomness
        ),
    }[job.partition]()
    return [samples.take(each) for each in indexes]


def _divided(parts: list[Samples], job: JobSettings) -> tuple[list[Samples], list[Samples]]:
    """What each worker trains on, and what it holds back; nothing without the setting `holdout`."""
    if not job.holdout:
        return parts, []
    divided = [hold_back(part, job, worker) for worker, part in enumerate(parts)]
    return [trained for trained, _ in divided], [tested for _, tested in divided]


def hold_back(samples: Samples, job: JobSettings, worker: int) -> tuple[Samples, Samples]:
    """A worker's samples to train on, and those to test on, by the setting `holdout`."""
    return partition.split_holdout(samples, job.holdout, generator(job.seed, "holdout", worker))


def _drawn(samples: Samples, job: JobSettings) -> Samples:
    if job.samples > len(samples):
        raise SettingError(
            f"samples is {job.samples}, but the data set has only {len(samples)} to train on."
        )
    order = torch.randperm(len(samples), generator=generator(job.seed, "samples"))
    # In their old order, so that asking for all samples changes nothing.
    return samples.take(order[: job.samples].sort().values)


def _on_device(
    model: nn.Module,
    worker_samples: Sequence[Samples],
    test: Samples,
    fixed: tuple[str, ...],
    job: JobSettings,
    *,
    padded: bool = False,
    held_back: Sequence[Samples] = (),
) -> Workload:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError("The model has no parameters that can be trained.")
    device = find_device("device", job.device)
    numbered = [*enumerate(worker_samples), *enumerate(held_back)]
    for worker, samples in numbered:
        if samples.shape != test.shape and not padded:
            raise DataError(
                f"Worker {worker}'s inputs have shape {samples.shape}, those for testing "
                f"{test.shape}."
            )
        types = (samples.kind, test.kind)
        if types[0] != types[1] and ("int64" in types or SEVERAL in types):
            kinds = [each if each == SEVERAL else f"torch.{each}" for each in types]
            raise DataError(
                f"Worker {worker}'s inputs are {kinds[0]}, those for testing {kinds[1]}."
            )
    trained, tested = (
        [samples.to(device) for samples in parts] for parts in (worker_samples, held_back)
    )
    workload = Workload(model.to(device), trained, test.to(device), fixed)
    return replace(workload, tested_by_workers=bool(tested), held_back=tested)
