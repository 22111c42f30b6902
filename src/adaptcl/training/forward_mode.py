"""A look at every operation of a model's forward pass, and at nothing else."""

from __future__ import annotations

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class ForwardMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that is active in every forward pass of the models it leads.

    Only there: to look at each operation costs time, and the backward pass draws nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def lead(self, model: nn.Module) -> nn.Module:
        """Be active in every forward pass of the model."""
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)
        return model

    def begin(self) -> None:
        """A forward pass is about to begin."""

    def end(self) -> None:
        """A forward pass is over."""

    def _begin(self, *_: object) -> None:
        self.begin()
        self.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *_: object) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.end()
