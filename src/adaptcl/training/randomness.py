"""Dropout and its like: random numbers that a model draws while it trains.

PyTorch hands them out from one generator for the whole process, but workers train side by side in
threads, and what one draws must not depend on the others. So in a model's forward pass every
operation that draws is given the task's own generator (`own_generator.py`); on a GPU, dropout draws
by the task's own seed (`own_dice.py`). Whether that works for a model is tried out beforehand;
where it does not, tasks take turns with the process's generators: PyTorch's, and Python's and
NumPy's too, from which some models draw which of their layers to leave out.
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

from adaptcl.seeds import derive
from adaptcl.training.gpu.task_dropout import Drop, TaskDropout
from adaptcl.training.task_generator import SHARED, QuickGenerator, TaskGenerator

try:
    from adaptcl.training.gpu.dropout import drop
except ImportError:  # Triton comes with PyTorch for GPUs on most systems, not on all
    _DROP: Drop | None = None
else:
    _DROP = drop

_ROUNDING = 1e-2
"""How far two passes with the same numbers may differ: on a GPU, sums have no fixed order."""


class Draws(Enum):
    """Where a model's random numbers come from while it trains."""

    NOTHING = "it draws none"
    OWN = "a generator of the task's own"
    DICE = "a seed of the task's own, on the GPU"
    SHARED = "the process's generators, one task at a time"


def draws_randomness(model: nn.Module, example: Tensor) -> Draws:
    """Try it: a step's forward and backward pass on copies of the model.

    Models that draw where no operation shows, or that save and restore the process's generator by
    themselves, as recomputing activations does, are found out by it. Of one that cannot take the
    step, as it trains on larger batches only, nothing is known.
    """
    with _forked():
        before, before_elsewhere = _states(example.device), _states_elsewhere()
        try:
            _pass(model, example)
            if before_elsewhere != _states_elsewhere():
                return Draws.SHARED
            if _same(before, _states(example.device)):
                return Draws.NOTHING
            if example.device.type == "cpu":
                return Draws.OWN if follows_generator(model, example) else Draws.SHARED
            return Draws.DICE if follows_dice(model, example) else Draws.SHARED
        except Exception:  # whatever a model does that cannot be followed
            return Draws.SHARED


def follows_generator(model: nn.Module, example: Tensor) -> bool:
    """Whether a model draws from a generator of its own, and from no other.

    From the same seed, the process's generator and one of its own must lead it to the very same
    scores and gradients.
    """
    torch.manual_seed(0)
    expected = _pass(model, example)
    before = _states(example.device)
    found = _pass(model, example, TaskGenerator(0).lead)
    return _same(before, _states(example.device)) and _same(expected, found)


def follows_dice(model: nn.Module, example: Tensor, drop: Drop | None = _DROP) -> bool:
    """Whether all that a model draws, it draws by a seed of its own.

    Then neither do the process's generators change, nor does it matter what they were.
    """
    if drop is None:
        return False
    found: list[list[Tensor]] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = _states(example.device)
        found.append(_pass(model, example, _Seeded(0, drop).lead))
        if not _same(before, _states(example.device)):
            return False
    return all(map(_alike, *found))


Follow = Callable[[nn.Module], nn.Module]
"""Makes a model draw from the generator it should, and gives it back."""


@contextmanager
def seeded(draws: Draws, seed: int) -> Iterator[Follow]:
    """A seed of its own for what models draw inside, if they are put through what this gives."""
    if draws is Draws.SHARED:
        with SHARED, _forked():
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # it takes no larger ones
            yield _as_it_is
    elif draws is Draws.DICE:
        assert _DROP is not None
        yield _Seeded(seed, _DROP).lead
    else:
        yield QuickGenerator(seed).lead if draws is Draws.OWN else _as_it_is


class _Seeded:
    """The dice of one task's models."""

    def __init__(self, seed: int, drop: Drop) -> None:
        self._seed = seed
        self._drop = drop
        self._models = 0

    def lead(self, model: nn.Module) -> nn.Module:
        """Give the model a seed; the next one, which is this one cut, gets another."""
        TaskDropout.of(model, self._drop).seed(derive(self._seed, "dice", self._models))
        self._models += 1
        return model


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def _pass(model: nn.Module, example: Tensor, follow: Follow = _as_it_is) -> list[Tensor]:
    """The scores and gradients of one pass in training mode, on a copy."""
    tried = follow(copy.deepcopy(model).train())
    scores = tried(example)
    if not isinstance(scores, Tensor):
        return []
    if scores.requires_grad:
        scores.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in tried.parameters() if p.grad is not None]
    return [scores.detach(), *gradients]


def _states(device: torch.device) -> list[Tensor]:
    """The states of the generators that a model on this device could draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _states_elsewhere() -> tuple[object, ...]:
    """The states of Python's and NumPy's generators, to be compared."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(words).tobytes(), *rest


@contextmanager
def _forked() -> Iterator[None]:
    """Afterwards the process's generators are as they were."""
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


def _same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= _ROUNDING * other.norm())
