"""Dropout on a GPU from a seed of the task.

A captured step draws its random numbers long after Python has seen it, and PyTorch lets it draw
only from the generators it was captured with. So dropout is done by our kernel here. It computes
its numbers from a seed and a count of passes that both lie on the GPU. A captured step that is
lent to another task then draws by that task's seed, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.training.cpu.task_generator import ForwardMode

Drop = Callable[[Tensor, float, float, Tensor, int], tuple[Tensor, Tensor]]
"""(values, probability p, scale, dice, number) → values × scale with about a share p of them set to
zero, and a mask of those that are left. `dice` is (seed, passes); what is drawn depends only on
these two and on `number`."""

_ATTRIBUTE = "adaptcl_dice"
_BUFFER = "adaptcl_dice_state"


class TaskDropout(ForwardMode):  # type: ignore[no-untyped-call]
    """While it is active, dropout of any kind draws by its seed; nothing else changes.

    It belongs to one model for good, because captured steps of the model read its seed and count.
    These two are a buffer of the model, so they are restored whenever its buffers are.
    """

    def __init__(self, device: torch.device, drop: Drop) -> None:
        super().__init__()
        self._drop = drop
        self._state = torch.zeros(2, dtype=torch.long, device=device)
        self._seed, self._passes = self._state[0], self._state[1]
        self._number = 0

    @classmethod
    def of(cls, model: nn.Module, drop: Drop) -> TaskDropout:
        """The model's dropout, made on the first call."""
        found = getattr(model, _ATTRIBUTE, None)
        if found is None:
            found = cls(next(model.parameters()).device, drop)
            setattr(model, _ATTRIBUTE, found)
            model.register_buffer(_BUFFER, found._state, persistent=False)
            found.attach(model)
        assert isinstance(found, cls)
        return found

    def seed(self, seed: int) -> None:
        """Start again with a seed of 63 bits."""
        # Filled and not copied: a copy from the host makes the host wait for the GPU.
        self._seed.fill_(seed)
        self._passes.zero_()

    def begin(self) -> None:
        """Number the operations of a pass from 0."""
        self._number = 0

    def end(self) -> None:
        """Let the next pass draw other numbers."""
        if self._number > 0:
            self._passes.add_(1)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.native_dropout.default:
            return self._dropped(*args, **kwargs)
        if func is torch.ops.aten.bernoulli_.float and kwargs.get("generator") is None:
            return self._filled(*args)
        return func(*args, **kwargs)

    def _dropped(self, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        if train is False or not 0 < p < 1:
            return torch.ops.aten.native_dropout.default(input, p, train)  # type: ignore[no-any-return]
        return self._drop(input, p, 1 / (1 - p), self._state, self._next())

    def _filled(self, tensor: Tensor, p: float = 0.5) -> Tensor:
        """Fill a mask as the other kinds of dropout ask for: ones, and a share 1 - p of zeros."""
        ones = torch.ones_like(tensor)
        return tensor.copy_(self._drop(ones, 1 - p, 1.0, self._state, self._next())[0])

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
