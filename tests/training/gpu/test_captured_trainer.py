"""Which task has which captured model. This needs no GPU; `tests/gpu` compares the steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import AdaptCLWarning
from adaptcl.training import Pruning, Recipe, Task
from adaptcl.training.gpu import captured_trainer as module
from adaptcl.training.gpu.captured_buffers import ModelTensors
from adaptcl.training.gpu.captured_model import CannotCaptureError
from adaptcl.training.gpu.captured_trainer import CapturedModels, CapturedTrainer
from adaptcl.training.objectives.objective import Objective
from adaptcl.training.trainer import PlainTrainer
from adaptcl.training.worker import Worker, WorkerMemory
from adaptcl.units import Kept, State, UnitMap

Tasks = Callable[..., Task]
KNOWN = WorkerMemory(lasso_lambda=0.001)


class InPlace:
    """Trains in the place of the task before it, as a captured model does, but on a CPU."""

    made: ClassVar[int] = 0
    first_run_waits_for: ClassVar[threading.Event | None] = None
    first_has_begun: ClassVar[threading.Event]

    def __init__(
        self,
        model: nn.Module,
        units: UnitMap,
        kept: Kept,
        samples: Samples,
        *,
        half: bool,
        objective: Objective,
    ) -> None:
        InPlace.made += 1
        self.model = model
        self.shape = kept.numpy().tobytes()
        self.last_worker = -1
        self._plain = PlainTrainer(model, units, samples, objective=objective)
        self._plain.hold(model, kept)
        self._tensors = ModelTensors(model)

    def load(self, state: State) -> None:
        self._tensors.load(state)

    def state(self) -> State:
        return self._tensors.copied()

    def run(
        self,
        batches: Sequence[Tensor],
        moves: Sequence[Tensor] | None,
        begin: int,
        recipe: Recipe,
        lasso: float,
        rate_factor: float,
    ) -> Tensor:
        gate, InPlace.first_run_waits_for = InPlace.first_run_waits_for, None
        if gate is not None:
            InPlace.first_has_begun.set()
            assert gate.wait(30)
        indexes = [each + begin for each in batches]
        return self._plain.run(indexes, moves, recipe, lasso, None, rate_factor)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "CapturedModel", InPlace)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    InPlace.made, InPlace.first_run_waits_for = 0, None
    InPlace.first_has_begun = threading.Event()
    yield
    InPlace.first_run_waits_for = None


@pytest.fixture
def hire(net: nn.Module, units: UnitMap, digits: Samples) -> Callable[[], Worker]:
    """A worker with new captured models, and the last thirty digits of all."""

    def make() -> Worker:
        part = digits.take(torch.arange(50, 80))
        models = CapturedModels(net, units, digits, half=False)
        return Worker(0, part, net, units, 7, trainer=CapturedTrainer(models, part, 50, 0))

    return make


def test_a_task_given_while_an_older_one_still_trains_changes_neither(
    hire: Callable[[], Worker], task: Tasks
) -> None:
    """As when a worker leaves, which stops no training, and comes back."""
    alone, both = hire(), hire()
    expected = [alone.carry_out(task(round=round_), KNOWN)[0] for round_ in (3, 4)]
    InPlace.first_run_waits_for = gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(both.carry_out, task(round=3), KNOWN)
        assert InPlace.first_has_begun.wait(30)
        try:
            new, _ = both.carry_out(task(round=4), KNOWN)
        finally:
            gate.set()
        found = [old.result()[0], new]
    for one, other in zip(found, expected, strict=True):
        assert one.loss == other.loss
        assert all(torch.equal(one.state[name], other.state[name]) for name in other.state)


def test_tasks_one_after_the_other_have_one_captured_model_of_a_shape(
    hire: Callable[[], Worker], units: UnitMap, task: Tasks
) -> None:
    mine = hire()
    for round_ in (1, 2, 3):
        mine.carry_out(task(round=round_), KNOWN)
    assert InPlace.made == 1
    # What is pruned by nothing at all is of the shape it was before.
    mine.carry_out(task(pruning=Pruning(0.0, "index", torch.rand(units.count))), KNOWN)
    assert InPlace.made == 1
    mine.carry_out(task(pruning=Pruning(0.4, "index", torch.rand(units.count))), KNOWN)
    assert InPlace.made == 2


def test_a_task_that_fails_gives_its_captured_model_back(
    hire: Callable[[], Worker], task: Tasks
) -> None:
    mine = hire()
    unknown = task(pruning=Pruning(0.4, "by the moon"))
    for _ in range(3):
        with pytest.raises(Exception, match="by the moon"):
            mine.carry_out(unknown, KNOWN)
    assert InPlace.made == 1


def test_a_model_that_cannot_be_captured_trains_in_the_plain_loop_with_one_warning(
    hire: Callable[[], Worker], task: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CannotCaptureError("Triton is not installed")

    monkeypatch.setattr(module, "CapturedModel", refuse)
    mine = hire()
    with pytest.warns(AdaptCLWarning, match="Triton is not installed"):
        mine.carry_out(task(round=1), KNOWN)
    mine.carry_out(task(round=2), KNOWN)  # a second warning would be an error


@pytest.mark.slow
def test_where_memory_is_short_captured_models_nobody_uses_go_before_one_is_made(
    hire: Callable[[], Worker], units: UnitMap, task: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch keeps what a captured model leaves until it is told to give it back."""
    alive: list[weakref.ref[InPlace]] = []
    at_giving_back: list[int] = []

    class Counted(InPlace):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            alive.append(weakref.ref(self))

    def living() -> int:
        return sum(each() is not None for each in alive)

    monkeypatch.setattr(module, "CapturedModel", Counted)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: at_giving_back.append(living()))
    mine = hire()
    rates = (0.1, 0.2, 0.3, 0.4)
    for rate in rates:
        mine.carry_out(task(pruning=Pruning(rate, "index", torch.arange(units.count) / 1.0)), KNOWN)
    shapes = living()
    assert shapes == len(rates) + 1  # the whole model too
    assert at_giving_back == []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 10))
    mine.carry_out(task(pruning=Pruning(0.5, "index", torch.arange(units.count) / 1.0)), KNOWN)
    assert at_giving_back[-1] < shapes - 1
