"""What goes into a model, as a user gives it, and what it does with that, as PyTorch sees it.

Inputs and targets are one tensor, or several in a tuple or a dictionary. A model is called with
what it takes: `model(x)` for a tensor, `model(*xs)` for a tuple and `model(**batch)` for a
dictionary. The first dimension of every tensor counts samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch.overrides import TorchFunctionMode

Tensors: TypeAlias = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def call_model(model: Callable[..., Any], inputs: Tensors) -> Any:
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def each_tensor(tensors: Tensors) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return list(tensors.values() if isinstance(tensors, Mapping) else tensors)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in any nesting of tuples, lists, mappings, dataclasses, or beside `logits`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(getattr(value, "logits", None), Tensor):
        yield from tensors_in(vars(value))


def first_output(output: Any) -> Tensor | None:
    """What a module gives, or the first of several, such as a recurrent layer's outputs."""
    first = output[0] if type(output) is tuple and output else output
    return first if isinstance(first, Tensor) else None


def mapped(function: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    """Apply a function to every tensor; the structure stays."""
    if isinstance(tensors, Tensor):
        return function(tensors)
    if isinstance(tensors, Mapping):
        return {name: function(tensor) for name, tensor in tensors.items()}
    return tuple(map(function, tensors))


def shapes_in_words(value: Any) -> str:
    """`float32 [2, 3]`, and the same for each of several tensors; other things by their type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shapes_in_words(each)}" for name, each in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(shapes_in_words, value))
    return f"of {type(value).__name__}"


class OperationMode(TorchFunctionMode):
    """Stands between a forward pass and the operations that it calls, while it is active."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.on_operation(func, args, dict(kwargs or {}))

    def on_operation(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation, or something else in its place."""
        raise NotImplementedError


def operation_name(func: Callable[..., Any]) -> str:
    """One name for all spellings of an operation: `x += y`, `x.add_(y)`, `torch.add(x, y)`."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.strip("_")
    return _SPELLINGS.get(name, name)


_SPELLINGS = {
    **{f"{kind}{name}": name for kind in "ir" for name in ("add", "mul", "pow")},
    **dict.fromkeys(("isub", "subtract"), "sub"),
    **dict.fromkeys(("truediv", "itruediv", "rtruediv", "rdiv", "true_divide"), "div"),
    "multiply": "mul",
}
