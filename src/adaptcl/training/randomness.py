"""Random numbers of a task, for models that draw some while they train (dropout and its like).

PyTorch has one generator for the whole process. Workers train side by side in threads, and what
one draws must not depend on the others. So each task has its own random numbers:

- on a CPU, each operation that draws gets the task's generator (`task_generator.py`);
- on a GPU, dropout draws from the task's seed (`gpu/task_dropout.py`);
- a model for which neither works takes turns with the process's generators: PyTorch's, Python's
  and NumPy's, from which some models draw which layers to skip.

Which of these a model needs is found out by trying.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import numpy as np
import torch
from torch import Tensor, nn

from adaptcl.seeds import derive, process_generators_restored, process_generators_seeded
from adaptcl.training.cpu.task_generator import QuickGenerator, TaskGenerator
from adaptcl.training.gpu.task_dropout import Drop, TaskDropout
from adaptcl.units.tensors import Tensors, call_model, each_tensor, tensors_in

try:
    from adaptcl.training.gpu.activations import drop
except ImportError:  # Triton comes with PyTorch for GPUs on most systems, not on all
    _DROP: Drop | None = None
else:
    _DROP = drop

_ROUNDING = 1e-2
"""Tolerance between two passes with the same numbers: on a GPU, sums have no fixed order."""


class Draws(Enum):
    """Where a model's random numbers come from while it trains."""

    NOTHING = "it draws none"
    TASK_GENERATOR = "a generator of the task"
    TASK_SEED = "a seed of the task, on a GPU"
    SHARED = "the process's generators, one task at a time"


def draws_randomness(model: nn.Module, example: Tensors) -> Draws:
    """Find out where a model draws from, by forward and backward passes on copies of it.

    This also detects models that draw outside of any operation, or that save and restore the
    process's generator, as recomputing activations does. A model that cannot take the step, for
    instance because it needs larger batches, takes turns.
    """
    device = each_tensor(example)[0].device
    with process_generators_restored():
        before, before_elsewhere = _states(device), _states_elsewhere()
        try:
            _pass(model, example)
            if before_elsewhere != _states_elsewhere():
                return Draws.SHARED
            if _same(before, _states(device)):
                return Draws.NOTHING
            if device.type == "cpu":
                return Draws.TASK_GENERATOR if follows_generator(model, example) else Draws.SHARED
            return Draws.TASK_SEED if follows_seed(model, example) else Draws.SHARED
        except Exception:  # a model may do anything
            return Draws.SHARED


def follows_generator(model: nn.Module, example: Tensors) -> bool:
    """Whether a model draws from a task's generator, and from no other.

    With the same seed, the process's generator and the task's must give the very same scores and
    gradients.
    """
    torch.manual_seed(0)
    expected = _pass(model, example)
    device = each_tensor(example)[0].device
    before = _states(device)
    found = _pass(model, example, TaskGenerator(0).attach)
    return _same(before, _states(device)) and _same(expected, found)


def follows_seed(model: nn.Module, example: Tensors) -> bool:
    """Whether everything a model draws comes from the task's seed.

    Then the process's generators do not change, and their state does not matter.
    """
    if _DROP is None:
        return False
    found: list[list[Tensor]] = []
    device = each_tensor(example)[0].device
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = _states(device)
        found.append(_pass(model, example, _TaskSeed(0).attach))
        if not _same(before, _states(device)):
            return False
    return all(map(_close, *found))


SeedModel = Callable[[nn.Module], nn.Module]
"""Makes a model draw the task's random numbers, and returns it."""


@contextmanager
def seeded(draws: Draws, seed: int) -> Iterator[SeedModel]:
    """Random numbers from this seed for all models that go through the function it yields."""
    if draws is Draws.SHARED:
        with process_generators_seeded(seed):
            yield _unchanged
    elif draws is Draws.TASK_SEED:
        yield _TaskSeed(seed).attach
    elif draws is Draws.TASK_GENERATOR:
        yield QuickGenerator(seed).attach
    else:
        yield _unchanged


class _TaskSeed:
    """The seeds of one task's models, on a GPU."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._models = 0

    def attach(self, model: nn.Module) -> nn.Module:
        """Seed a model. The task's next model, which is this one pruned, gets another seed."""
        assert _DROP is not None
        TaskDropout.of(model, _DROP).seed(derive(self._seed, "dice", self._models))
        self._models += 1
        return model


def _unchanged(model: nn.Module) -> nn.Module:
    return model


def _pass(model: nn.Module, example: Tensors, seed_model: SeedModel = _unchanged) -> list[Tensor]:
    """Outputs and gradients of one pass in training mode, on a copy."""
    tried = seed_model(copy.deepcopy(model).train())
    outputs = list(tensors_in(call_model(tried, example)))
    roots = [each for each in outputs if each.requires_grad]
    if roots:
        torch.autograd.backward([each.square().sum() for each in roots])
    gradients = [p.grad for p in tried.parameters() if p.grad is not None]
    return [*(each.detach() for each in outputs), *gradients]


def _states(device: torch.device) -> list[Tensor]:
    """The states of PyTorch's generators that a model on this device could draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _states_elsewhere() -> tuple[object, ...]:
    """The states of Python's and NumPy's generators, in a form that can be compared."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(words).tobytes(), *rest


def _same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= _ROUNDING * other.norm())
