"""The forward pass that is traced: what it asks of a model and its example, and its one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import BaseTorchFunctionMode

from adaptcl.errors import TraceError, describe_type
from adaptcl.units.tensors import Tensors, call_model, each_tensor, tensors_in
from adaptcl.units.user_model import called, each_module, failures_named, refuse_no_module


class WithoutFusedLayers(BaseTorchFunctionMode):
    """Makes transformer layers run the same steps in eval mode as in training mode.

    In eval mode, PyTorch runs such a layer as one fused operation and packs padded texts into
    nested tensors. Neither can be traced. Any active function mode, even one that does nothing,
    prevents that.
    """


def check_traceable(model: nn.Module) -> None:
    """Raise `TraceError` for modules with invisible operations or with unsupported state."""
    refuse_no_module(model)
    inside = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{called(name, module)} is TorchScript, whose operations cannot be seen; "
                "use the Python module it was made from."
            )
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(is_lazy(tensor) for tensor in tensors):
            raise TraceError(f"{called(name, module)} is lazy; run a batch through it first.")
        for inner, parameter in module.named_parameters(recurse=False):
            if parameter.is_complex() and parameter.requires_grad:
                raise TraceError(
                    f"{called(name, module)} has a parameter {inner!r} of complex numbers, "
                    "which cannot be trained here; keep its real and imaginary parts as one of "
                    "real numbers (torch.view_as_real) and join them in the forward pass."
                )
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if any(id(each) in inside for hook in hooks for each in _referred_to(hook)):
            raise TraceError(
                f"{called(name, module)} has a hook that holds a part of this very model, while "
                "workers train copies; let it use the module that it is called with."
            )
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise TraceError(
                f"{called(name, module)} has a state beside its tensors (get_extra_state), which "
                "cannot be sent to workers; keep it in buffers, or outside of the state dict."
            )
    _check_state_dict(model)


def checked_example(example: Any, model: nn.Module) -> Tensors:
    """A batch of inputs as tensors without gradients; an error if it is none.

    NumPy makes doubles where PyTorch makes floats, so arrays get the precision of the model.
    """
    kinds = (each.dtype for each in model.parameters() if each.is_floating_point())
    precision = next(kinds, torch.get_default_dtype())

    def tensor(value: Any) -> Tensor:
        if hasattr(value, "columns") and hasattr(value, "to_numpy"):  # a frame
            with suppress(TypeError, ValueError):
                value = value.to_numpy(dtype=np.float32)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
            value = value.to(precision) if value.is_floating_point() else value
        if not isinstance(value, Tensor):
            raise TraceError(
                f"The example is or holds {describe_type(value)}, but it must be a batch of "
                "inputs: a tensor or an array, or a tuple or a dictionary of them."
            )
        if value.dim() == 0 or len(value) == 0:
            raise TraceError("The example must be a batch of at least one sample.")
        return value.detach()

    if isinstance(example, Mapping):
        tensors: Tensors = {name: tensor(value) for name, value in example.items()}
    else:
        several = isinstance(example, tuple | list)
        tensors = tuple(map(tensor, example)) if several else tensor(example)
    if not each_tensor(tensors):
        raise TraceError("The example must be a batch of at least one sample.")
    return tensors


def _check_state_dict(model: nn.Module) -> None:
    """Raise `TraceError` for a state dict that is not the one that PyTorch makes."""
    plain = {
        f"{name}.{inner}" if name else inner: tensor
        for name, module in model.named_modules(remove_duplicate=False)
        for inner, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None and inner not in module._non_persistent_buffers_set
    }
    try:
        state = model.state_dict(keep_vars=True)
        same = state.keys() == plain.keys() and all(state[n] is plain[n] for n in plain)
    except Exception:  # a user's method may raise anything
        same = False
    if not same:
        raise TraceError(
            f"{called('', model)} does not have the state dict that PyTorch gives to its modules; "
            "leave `state_dict` as it is, and convert names or values where you save and load."
        )


def _referred_to(hook: Any) -> Iterator[Any]:
    """What a function refers to beside its arguments: a copied model has the same functions."""
    if isinstance(hook, FunctionType):
        held = [hook.__globals__.get(name) for name in hook.__code__.co_names]
        for cell in hook.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                held.append(cell.cell_contents)
        for each in held:
            yield each
            if isinstance(each, tuple | list):
                yield from each
            elif isinstance(each, dict):
                yield from each.values()


def check_repeatable(model: nn.Module, sample: Tensors) -> None:
    """Raise `TraceError` for a model that gives different outputs for the same input and the same
    random numbers."""
    passes: list[list[list[Tensor]]] = [[], []]
    names: list[str] = []
    for results in passes:

        def keep(name: str, output: Any, results: list[list[Tensor]] = results) -> None:
            names.append(name)
            results.append([tensor.clone() for tensor in tensors_in(output)])

        torch.manual_seed(0)
        with each_module(model, after=keep):
            call_model(model, sample)
    first, second = passes
    modules = dict(model.named_modules())
    for name, one, other in zip(names, first, second, strict=False):
        if len(one) != len(other) or not all(map(_same, one, other)):
            raise TraceError(
                f"{called(name, modules[name])} gives different outputs to the same input, "
                "even with the same random numbers of PyTorch, so its units cannot be checked."
            )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, equal_nan=True)


RETURNED = "the model returns them"
BY_PATTERN = "fixed by a pattern"


def run(
    model: nn.Module, sample: Tensors, fixed: Sequence[str], pin: Callable[[Tensor, str], None]
) -> None:
    """Run the model once; `pin` what it returns and what the `fixed` modules return."""
    pinned = _matching(model, fixed)

    def leave(name: str, output: Any) -> None:
        if name in pinned:
            for tensor in tensors_in(output):
                pin(tensor, BY_PATTERN)

    with failures_named(model, sample), each_module(model, after=leave):
        output = call_model(model, sample)
    returned = list(tensors_in(output))
    if not returned:
        raise TraceError(
            f"{called('', model)} returns {type(output).__name__}, in which there is no tensor."
        )
    for tensor in returned:
        pin(tensor, RETURNED)


def _matching(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """The names in `named_modules` of the modules that match any pattern."""
    first_names = {id(module): name for name, module in model.named_modules()}
    found: set[str] = set()
    for pattern in patterns:
        matching = {
            first_names[id(module)]
            for name, module in model.named_modules(remove_duplicate=False)
            if fnmatchcase(name, pattern)
        }
        if not matching:
            raise TraceError(
                f"No module of the model has a name like {pattern!r}; "
                f"{_names_near(pattern, [name for name in first_names.values() if name])}"
            )
        found |= matching
    return found


_NAMED = 5
"""How many names an error message suggests."""


def _names_near(pattern: str, names: Collection[str]) -> str:
    """The end of an error message: names that are similar to the pattern, or the first names."""
    if not names:
        return "there are no modules inside it."
    # `conv1` means `body.conv1` at least as often as `conv2`.
    inside = [name for name in names if fnmatchcase(name, f"*.{pattern.strip('.')}")]
    near = list(dict.fromkeys((*inside, *get_close_matches(pattern, names, _NAMED))))
    listed = ", ".join(map(repr, (near or list(names))[:_NAMED]))
    if near:
        return f"did you mean {'one of ' if len(near) > 1 else ''}{listed}?"
    return f"there are {listed}{' and others' if len(names) > _NAMED else ''}."
