"""Random numbers from a generator of the task, on a CPU.

A dispatch mode sees every operation of a model's forward pass and gives those that draw the task's
generator. `QuickGenerator` also draws dropout masks faster than PyTorch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adaptcl.seeds import PROCESS_GENERATORS

_BITS = 16
_QUICK = (0.002, 0.998)
"""Probabilities for which 16 bits are enough: they are met to within a third of a per cent, and
those of usual dropout far better."""


class ForwardMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that is active in the forward passes of the models it is attached to.

    It is active only there: seeing each operation costs time, and the backward pass draws nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch asks. Yes would import its compiler, which takes seconds, for nothing."""
        return False

    def attach(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)
        return model

    def begin(self) -> None:
        """Called before a forward pass."""

    def end(self) -> None:
        """Called after a forward pass."""

    def _begin(self, *_: object) -> None:
        self.begin()
        self.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *_: object) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.end()


class TaskGenerator(ForwardMode):  # type: ignore[no-untyped-call]
    """While it is active, what this thread draws on the CPU comes from one generator."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func):
            return func(*args, **kwargs)
        position = _generator_argument(func)
        if position is None:
            return self._run_swapped(func, args, kwargs)
        if len(args) > position:
            if args[position] is None:
                args = (*args[:position], self._generator, *args[position + 1 :])
        elif kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)

    def _run_swapped(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation that takes no generator, with the process's generator in our state."""
        shared = torch.default_generator
        with PROCESS_GENERATORS:
            before = shared.get_state()
            shared.set_state(self._generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self._generator.set_state(shared.get_state())
                shared.set_state(before)


class QuickGenerator(TaskGenerator):  # type: ignore[no-untyped-call]
    """The same with a faster dropout.

    PyTorch draws a number for each entry of a mask, one after the other where there is no vector
    library. In a small net that can be 6 % of a training step. Here one number of 64 bits decides
    on four entries. Probabilities are then multiples of 1/65,536, which makes no difference to
    training. Very small and very large ones are left to PyTorch.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.bernoulli_.float and not kwargs and _is_dense(args[0]):
            tensor, probability = args if len(args) == 2 else (args[0], 0.5)
            if _QUICK[0] <= probability <= _QUICK[1]:
                return self._filled(tensor, round(probability * 2**_BITS) - 2 ** (_BITS - 1))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _filled(self, tensor: Tensor, below: int) -> Tensor:
        """Fill with ones where a signed number of 16 bits is less than `below`, else zeros."""
        count = tensor.numel()
        words = torch.empty(-(-count * _BITS // 64), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self._generator)
        # In any dense layout the entries lie one after the other.
        entries = tensor.as_strided((count,), (1,))
        torch.lt(words.view(torch.int16)[:count], below, out=entries)
        return tensor


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


@cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@cache
def _generator_argument(func: Any) -> int | None:
    """The position of an operation's generator argument; None if it takes none."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index("generator") if "generator" in names else None
