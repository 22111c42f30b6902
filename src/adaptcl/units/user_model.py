"""A user's model: refusing what is none, and running it so that every error names its module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.errors import TraceError, describe_type, suggest_instance
from adaptcl.units.tensors import Tensors, call_model, each_tensor, shapes_in_words


def refuse_no_module(model: object) -> None:
    """An error for a class, a function or anything else in place of a model."""
    if isinstance(model, nn.Module):
        return
    is_function = callable(model) and not isinstance(model, type)
    hint = "; give what it returns" if is_function else suggest_instance(model)
    raise TraceError(f"The model is {describe_type(model)}, but it must be an nn.Module{hint}.")


def uncompiled(model: Any) -> Any:
    """The module inside a model of `torch.compile`; anything else is returned as it is.

    Tracing has to see every operation. And every cut changes the shapes, so the model would be
    compiled again each time. The user can compile the result.
    """
    return getattr(model, "_orig_mod", model)


def called(name: str, module: nn.Module) -> str:
    """The name of a module in an error message."""
    kind = type(module).__name__
    return f"Module {name!r} ({kind})" if name else f"The model ({kind})"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate within; then restore the mode of every module."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def without_effects(inputs: Tensors) -> Iterator[None]:
    """Run a model without gradients, and leave the random numbers as they were."""
    first = each_tensor(inputs)[0]
    devices = [first.device] if first.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        yield


@contextmanager
def failures_named(model: nn.Module, sample: Tensors, when: str = "") -> Iterator[None]:
    """Turn whatever the model raises into a `TraceError` that names the failing module."""
    with running_modules(model) as running:
        try:
            yield
        except Exception as error:  # a user's forward pass may raise anything
            name = running[-1] if running else ""
            raise TraceError(
                f"{called(name, model.get_submodule(name))} failed{when} on inputs "
                f"{shapes_in_words(sample)}: {error}{_missing_axis(model, sample)}"
            ) from error


def _missing_axis(model: nn.Module, sample: Tensors) -> str:
    """A hint where the input has fewer axes than a batch for the model's first convolution."""
    convolutions = (m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d))
    first = next(convolutions, None)
    if first is None or not isinstance(sample, Tensor) or sample.dim() >= first.weight.dim():
        return ""
    return (
        f". A batch for {type(first).__name__} has {first.weight.dim()} axes, first the samples, "
        "then the channels: is that of the channels missing (inputs.unsqueeze(1) adds it), or that "
        "of the samples (inputs[:2], not inputs[0])?"
    )


def running_in_training(model: nn.Module, sample: Tensors) -> set[str]:
    """The names of the modules that run in training mode, up to one that fails.

    A copy of the model is tried.
    """
    names: set[str] = set()
    tried = copy.deepcopy(model).train()
    with (
        without_effects(sample),
        each_module(tried, before=lambda name, _: names.add(name)),
        suppress(Exception),
    ):
        call_model(tried, sample)
    return names


@contextmanager
def running_modules(model: nn.Module) -> Iterator[list[str]]:
    """A list of the modules that are running, the innermost last; it changes during the pass."""
    names: list[str] = []

    def enter(name: str, _: Any) -> None:
        names.append(name)

    def leave(*_: object) -> None:
        names.pop()

    with each_module(model, enter, leave):
        yield names


Act = Callable[[str, Any], None]


def _ignore(*_: object) -> None:
    pass


@contextmanager
def each_module(model: nn.Module, before: Act = _ignore, after: Act = _ignore) -> Iterator[None]:
    """Call `before(name, inputs)` whenever a module starts and `after(name, output)` at its end."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in (
                module.register_forward_pre_hook(
                    lambda *seen, name=name: before(name, seen[1:]), with_kwargs=True
                ),
                module.register_forward_hook(lambda *seen, name=name: after(name, seen[2])),
            ):
                stack.callback(handle.remove)
        yield
