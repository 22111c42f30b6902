"""Replace operations of a model's forward pass by fewer and faster ones.

A model is recorded once while it runs, operation by operation. Then it runs with shortcuts:

- a batch norm whose output goes only into a ReLU becomes one operation with it, and with a
  max-pool that halves the image if one follows in the same way;
- the bias of a convolution or linear layer whose output goes only into a batch norm is left out:
  the batch norm subtracts it again, its gradient is zero, and only the running mean needs it;
- the batch counters of all batch norms are raised at once;
- other max-pools that halve an image, and convolutions, use our kernels where they fit.

Operations are identified by their order. So a model must do the same in every pass, as it must to
be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_RELU: frozenset[Any] = frozenset(
    {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
)
_BIASED: frozenset[Any] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d, F.linear})
_LOOKS: frozenset[Any] = frozenset(
    {Tensor.dim, Tensor.size, Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__}  # type: ignore[attr-defined]
)
"""Functions that ask about a tensor without using its values."""


class BatchNorm(Protocol):
    """A batch norm in training with what is fused with it (see `batch_norm.py`)."""

    def __call__(
        self,
        x: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        scale: Tensor,
        shift: Tensor,
        momentum: float,
        eps: float,
        *,
        relu: bool,
        bias: Tensor | None,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Convolution:
    """The arguments of `torch.conv2d`."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


@dataclass(frozen=True)
class Operations:
    """Our operations, and which inputs they can take."""

    batch_norm: BatchNorm
    normalises: Callable[[Tensor], bool]  # whether `batch_norm` can take an input
    batch_norm_pool: BatchNorm  # the same with a ReLU and the usual max-pool behind it
    halve: Callable[[Tensor], Tensor]  # the usual max-pool, 2×2 with stride 2
    halves: Callable[[Tensor], bool]
    convolve: Callable[[Convolution], Tensor]
    convolves: Callable[[Convolution], bool]


@dataclass(frozen=True)
class Shortcuts:
    """What can be shortened. Operations are numbered in their order."""

    norms: frozenset[int] = frozenset()  # batch norms that our operation can do
    with_relu: frozenset[int] = frozenset()  # those of them that a ReLU follows
    with_pool: frozenset[int] = frozenset()
    """Those of them that a ReLU and then a max-pool by halves follow."""
    without_bias: dict[int, int] = field(default_factory=dict)
    """From layers whose bias is left out to the batch norms that follow them."""


@dataclass(frozen=True)
class _Call:
    """The arguments of `F.batch_norm`."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5

    def can_be_fused(self, fits: Callable[[Tensor], bool]) -> bool:
        whole = (self.running_mean, self.running_var, self.weight, self.bias)
        return (
            self.training
            and all(t is not None and t.dtype == torch.float32 for t in whole)
            and fits(self.input)
        )


class OperationRecorder(TorchFunctionMode):
    """Records one forward pass in training mode; `found()` then tells what can be shortened."""

    def __init__(self, fits: Callable[[Tensor], bool], halves: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._fits = fits
        self._halves = halves
        self._made: dict[int, tuple[str, int]] = {}
        self._users: dict[tuple[str, int], list[Any]] = {}
        self._looked_at: set[int] = set()
        """Norms of which somebody asked for the shape of the output, or of the ReLU's behind."""
        self._alive: list[Tensor] = []  # the id of a freed tensor could be reused
        self._norms = 0
        self._biased = 0

    def found(self) -> Shortcuts:
        norm_of = {
            number: users[0][1]
            for (kind, number), users in self._users.items()
            if kind == "biased" and len(users) == 1 and users[0][0] == "norm"
        }
        norms = {number for kind, number in self._users if kind == "norm"}
        # A fused pool changes the shape, so nobody may have asked for it.
        pooled = self._only("rectified", "pool") - self._looked_at
        return Shortcuts(frozenset(norms), self._only("norm", "relu"), pooled, norm_of)

    def _only(self, kind: str, user: str) -> frozenset[int]:
        """Numbers of the operations whose output goes into one such user and nowhere else."""
        return frozenset(
            number
            for (made, number), users in self._users.items()
            if made == kind and [each for each, _ in users] == [user]
        )

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        norm = func is F.batch_norm and _Call(*args, **kwargs).can_be_fused(self._fits)
        user = self._user(func, args, kwargs, norm)
        taken = args[0] if args else kwargs.get("input")
        for value in tree_leaves((args, kwargs)):
            source = self._made.get(id(value)) if isinstance(value, Tensor) else None
            if source is None:
                continue
            if user == "look":
                if source[0] != "biased":
                    self._looked_at.add(source[1])
            else:  # the scale and shift of a batch norm are not its input
                as_input = user if value is taken else "other"
                self._users[source].append((as_input, self._norms))
        kind, number = self._made.get(id(args[0]), ("", 0)) if user == "relu" else ("", 0)
        result = func(*args, **kwargs)
        if user == "relu":
            # In place, the result is the same tensor, but no longer a batch norm's output.
            self._made.pop(id(result), None)
            if kind == "norm":
                self._note(result, "rectified", number)
        if norm:
            self._note(result, "norm", self._norms)
        elif func in _BIASED and _bias(args, kwargs) is not None and _along_channels(func, result):
            self._note(result, "biased", self._biased)
        self._norms += func is F.batch_norm
        self._biased += func in _BIASED
        return result

    def _user(self, func: Any, args: Sequence[Any], kwargs: Any, norm: bool) -> str:
        if func in _LOOKS:
            return "look"
        if norm:
            return "norm"
        if func in _RELU:
            return "relu"
        pool = func is F.max_pool2d and _halving(*args, **kwargs) and self._halves(args[0])
        return "pool" if pool else "other"

    def _note(self, result: Tensor, kind: str, number: int) -> None:
        self._made[id(result)] = kind, number
        self._users[kind, number] = []
        self._alive.append(result)


class Shortened(TorchFunctionMode):
    """Runs a forward pass with shortcuts; `finish` then does what was postponed."""

    def __init__(
        self, shortcuts: Shortcuts, operations: Operations, counters: Sequence[Tensor]
    ) -> None:
        super().__init__()
        self._shortcuts = shortcuts
        self._operations = operations
        self._counters = {id(counter): counter for counter in counters}
        self._norms = 0
        self._biased = 0
        self._rectified: list[Tensor] = []
        self._pooled: list[Tensor] = []
        self._left_out: dict[int, Tensor] = {}
        self._raised: list[Tensor] = []
        self.without_gradient: list[Tensor] = []
        """Biases that were left out: trained, but with a gradient of zero."""

    def finish(self) -> None:
        """Raise the counters of batches."""
        if self._raised:
            torch._foreach_add_(self._raised, 1)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._normalised(_Call(*args, **kwargs))
        if func in _BIASED:
            return self._multiplied(func, args, kwargs)
        if func in _RELU and _taken_out(self._rectified, args[0]):
            return args[0]
        if func is F.max_pool2d:
            if _taken_out(self._pooled, args[0]):
                return args[0]
            if _halving(*args, **kwargs) and self._operations.halves(args[0]):
                return self._operations.halve(args[0])
        if func is Tensor.add_ and self._can_wait(*args):
            self._raised.append(args[0])
            return args[0]
        return func(*args, **kwargs)

    def _can_wait(self, counter: Tensor, *raised_by: Any) -> bool:
        """Whether this is a counter of batches that is raised for the first time in the pass."""
        again = any(counter is each for each in self._raised)
        return id(counter) in self._counters and raised_by == (1,) and not again

    def _normalised(self, call: _Call) -> Tensor:
        number = self._norms
        self._norms += 1
        if number not in self._shortcuts.norms:
            return F.batch_norm(**vars(call))
        if not self._operations.normalises(call.input):
            raise RuntimeError("the model does not do the same with every batch")
        assert call.running_mean is not None
        assert call.running_var is not None
        assert call.weight is not None
        assert call.bias is not None
        relu = number in self._shortcuts.with_relu
        pool = relu and number in self._shortcuts.with_pool
        operation = self._operations.batch_norm_pool if pool else self._operations.batch_norm
        result = operation(
            call.input,
            call.running_mean,
            call.running_var,
            call.weight,
            call.bias,
            call.momentum,
            call.eps,
            relu=relu,
            bias=self._left_out.pop(number, None),
        )
        if relu:
            self._rectified.append(result)
        if pool:
            self._pooled.append(result)
        return result

    def _multiplied(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        number = self._biased
        self._biased += 1
        norm = self._shortcuts.without_bias.get(number)
        if norm is not None:
            bias = _bias(args, kwargs)
            assert bias is not None
            self._left_out[norm] = bias.detach()
            self.without_gradient.append(bias)
            if "bias" in kwargs:
                kwargs = {**kwargs, "bias": None}
            else:
                args = (*args[:2], None, *args[3:])
        if func is torch.conv2d:
            call = Convolution(*args, **kwargs)
            if self._operations.convolves(call):
                return self._operations.convolve(call)
        return func(*args, **kwargs)


def _along_channels(func: Any, result: Tensor) -> bool:
    """Whether a layer's bias lies along the channels of a batch norm."""
    return func is not F.linear or result.dim() == 2


def _taken_out(tensors: list[Tensor], wanted: Any) -> bool:
    """Whether a tensor was in the list, from which it is removed."""
    for number, each in enumerate(tensors):
        if each is wanted:
            del tensors[number]
            return True
    return False


def _bias(args: Sequence[Any], kwargs: Any) -> Tensor | None:
    bias: Tensor | None = args[2] if len(args) > 2 else kwargs.get("bias")
    return bias


def _halving(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether these arguments of a max-pool mean 2×2 squares side by side."""
    plain = padding in (0, (0, 0)) and dilation in (1, (1, 1))
    two = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    return two and plain and not ceil_mode and not return_indices
