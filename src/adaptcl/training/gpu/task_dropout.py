"""Dropout on a GPU from a seed of the task's own.

A captured step draws its random numbers long after Python has looked at it, and PyTorch lets it
draw from generators only that it was captured with. So dropout is done by an operation of our own
here, which works its numbers out from a seed and a count of passes that both lie on the GPU: a
captured step that is lent to another task draws by that task's seed, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.training.task_generator import ForwardMode

Drop = Callable[[Tensor, float, float, Tensor, int], tuple[Tensor, Tensor]]
"""(values, probability p, scale, dice, number) → values × scale with zeros in place of about p of
them, and a mask that says where they are left. `dice` is (seed, passes); what is drawn depends on
these two and on `number` alone."""

_ATTRIBUTE = "adaptcl_dice"
_BUFFER = "adaptcl_dice_state"


class TaskDropout(ForwardMode):  # type: ignore[no-untyped-call]
    """While it is active, dropout of any kind draws by its seed; all else that draws is as ever.

    One belongs to a model for good, because captured steps of the model read its seed and count.
    They are a buffer of the model, so that who puts a model's buffers back puts them back too.
    """

    def __init__(self, device: torch.device, drop: Drop) -> None:
        super().__init__()
        self._drop = drop
        self._state = torch.zeros(2, dtype=torch.long, device=device)
        self._seed, self._passes = self._state[0], self._state[1]
        self._number = 0

    @classmethod
    def of(cls, model: nn.Module, drop: Drop) -> TaskDropout:
        """The one of this model, which gets one if it has none yet."""
        own = getattr(model, _ATTRIBUTE, None)
        if own is None:
            own = cls(next(model.parameters()).device, drop)
            setattr(model, _ATTRIBUTE, own)
            model.register_buffer(_BUFFER, own._state, persistent=False)
            own.lead(model)
        assert isinstance(own, cls)
        return own

    def seed(self, seed: int) -> None:
        """Begin anew with a seed of 63 bits."""
        # Filled and not copied: a copy from the host makes the host wait for the GPU.
        self._seed.fill_(seed)
        self._passes.zero_()

    def begin(self) -> None:
        """The operations of a pass are numbered from 0."""
        self._number = 0

    def end(self) -> None:
        """The next pass draws others."""
        if self._number > 0:
            self._passes.add_(1)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, or ours in its place."""
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
        """What the other kinds of dropout ask for: ones, and zeros in place of 1 - p of them."""
        ones = torch.ones_like(tensor)
        return tensor.copy_(self._drop(ones, 1 - p, 1.0, self._state, self._next())[0])

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
